"""Study types: the grid points of a study, how they run, and which tables and figures they show.

All study types run in one loop (`loop.py`). It composes and validates the grid points, looks up
which of them are stored, runs the missing ones shard by shard (here or on a cluster), and shows the
stored points. `cqbjax report` shows them again. The study type of an ordinary sweep is in
`sweeps.py`; docs/how_to/add_a_kind_of_study.md adds another.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import xarray as xr

from cqbjax.core.labels import OPTIMAL
from cqbjax.engine.progress import Reporter
from cqbjax.engine.runner import Estimate
from cqbjax.engine.spec import SweepSpec
from cqbjax.experiments import grid, manifests, study, validation
from cqbjax.experiments.configs import ComposedConfig, Config
from cqbjax.experiments.grid import GridPoint, PreparedPoint
from cqbjax.experiments.study import Factory
from cqbjax.results.index import CacheKey

if TYPE_CHECKING:
    import polars as pl

    from cqbjax.results.metrics import Metric


class OutputTable(NamedTuple):
    """A table of a study's results.

    Attributes:
        frame: the rows of the table.
        caption: text printed above the table; without a caption only a CSV file is written.
        printed: whether the table is printed as well as written.
        recorded: recorded metrics, whose columns are moved to separate tables if there are many.
    """

    frame: "pl.DataFrame"
    caption: str
    printed: bool = True
    recorded: "Mapping[str, Metric] | None" = None


class StudyOutput(NamedTuple):
    """The tables and figures of a study.

    The keys of `tables` and `figures` are suffixes: a file is named after the study and the suffix.
    The suffix "" is for the main table or figure.

    Attributes:
        tables: suffix -> table.
        figures: suffix -> Matplotlib figure.
    """

    tables: Mapping[str, OutputTable]
    figures: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class StudyType:
    """Base class of study types: subclasses define `measure` and `show`, and may override others.

    Its fields are the keys `kind.NAME` of a configuration. `compose` and `show` are called on an
    instance made from the study's configuration. All other methods are called on one instance per
    point, made from the point's configuration.

    Attributes:
        prefix: prefix of the study's name in file names, so that its files do not overwrite those
            of a sweep with the same name.
    """

    prefix: str = ""

    # Keys that do not affect the numbers, in addition to `manifests.DISPLAY_KEYS`; `kind.NAME` is
    # the field NAME.
    display_keys: ClassVar[tuple[str, ...]] = ()
    # Keys that the study type does not read (`*`: all others), and keys that it reads itself, not
    # only through policies and the source.
    unread_keys: ClassVar[tuple[str, ...]] = ()
    read_keys: ClassVar[tuple[str, ...]] = ()
    # Whether a result has the arrays of a sweep, which `results.load` combines.
    is_sweep: ClassVar[bool] = False
    # Whether arrival rates and seeds can be added to stored results: the numbers of a run depend
    # only on its rate and seed, and the arrays have both as dimensions.
    extensible: ClassVar[bool] = False
    # Modules in which the computation begins; None: the module of the class.
    code_modules: ClassVar[tuple[str, ...] | None] = None

    def compose(
        self, points: Sequence[GridPoint], config: ComposedConfig, swept: Mapping[str, Any]
    ) -> list[GridPoint]:
        """Return the points that run; by default, all combinations of the grid.

        Args:
            points: all combinations, from `grid.compose`.
            config: configuration of the study.
            swept: the keys that the command sweeps, with their values in this configuration. One
                command runs several configurations, which differ in these keys.

        Raises:
            ValueError: a key has a value that is not allowed.
        """
        return list(points)

    def prepare(self, point: GridPoint, factory: Factory) -> PreparedPoint:
        """Instantiate what runs at a point; each of its `policies` is stored separately."""
        source = factory.make_once(point.config.source)
        policies = factory.make_each(point.config.policy)
        return study.assemble_point(point, source, policies, factory, self)

    def validate(self, prepared: PreparedPoint) -> SweepSpec | None:
        """Validate a point before anything is trained or compiled.

        Returns:
            The point's sweep spec, stored in `PreparedPoint.spec`; None if the study type has none.

        Raises:
            ValueError: one sentence that names the setting and what is allowed.
        """
        validation.validate_without_dynamics(prepared.point.config, type(self).__name__)
        return study.validate_point(prepared)

    def cache_key(self, prepared: PreparedPoint) -> CacheKey:
        """Return the hash of everything that determines a point's numbers."""
        return manifests.cache_key_of(prepared)

    def count_rounds(self, prepared: PreparedPoint) -> int:
        """Return the rounds of all runs: policies x arrival rates x seeds x horizon.

        In a sweep the optimal policy always runs.
        """
        config = prepared.point.config
        policies = {*prepared.policies, *([OPTIMAL] if self.is_sweep else [])}
        return len(policies) * len(config.arrival_rate) * int(config.num_seeds * config.horizon)

    def estimate(self, left: Sequence[PreparedPoint], progress: Reporter) -> list[Estimate]:
        """Estimate how long points take.

        Args:
            left: the points to run, each with the policies that will run.
            progress: receives the current activity.
        """
        return [
            Estimate(f"{one.point.name}: {self.count_rounds(one):,} rounds", 0, 0) for one in left
        ]

    def count_bytes(self, prepared: PreparedPoint) -> int:
        """Return the bytes of a point's arrays, 0 if they are not known before it runs."""
        return 0

    def divide(
        self, points: Sequence[PreparedPoint], min_shards: int = 1
    ) -> list[list[PreparedPoint]]:
        """Divide points into shards, which run and are stored together.

        By default, each policy of each point is a shard. The study type of a sweep of policies puts
        whole points into a shard instead.

        Args:
            points: each with the policies that will run.
            min_shards: least number of shards to aim for; the default ignores it.
        """
        return [
            [one._replace(policies={label: policy})]
            for one in points for label, policy in one.policies.items()
        ]  # fmt: skip

    def run(
        self, shard: Sequence[PreparedPoint], progress: Reporter, resume: Path | None = None
    ) -> list[xr.Dataset]:
        """Run the points of a shard.

        Args:
            shard: from `divide`.
            progress: receives compiling and rounds.
            resume: a folder of checkpoints, which is deleted when the shard is stored.

        Returns:
            A dataset for each point, with the experiment and its source as attributes.
        """
        return [
            self.measure(one, progress).assign_attrs(
                experiment=one.point.config.name, K=one.point.config.K, **study.describe_source(one)
            )
            for one in shard
        ]

    def measure(self, prepared: PreparedPoint, progress: Reporter) -> xr.Dataset:
        """Run the policies of one point.

        Args:
            prepared: a validated point; policies that learn offline are untrained
                (`study.train_point`).
            progress: receives compiling and rounds.

        Returns:
            Variables of any names. Their dimensions are `policy`, with the labels as coordinate,
            and others, each with a coordinate. Attributes are text and numbers.
        """
        raise NotImplementedError(f"{type(self).__name__} must define how a point is measured")

    def select_rounds(self, config: Config, panels: int) -> list[int] | None:
        """Return the rounds that are read to show results; None: all.

        Args:
            config: configuration of the study.
            panels: number of points and arrival rates.
        """
        return None

    def show(self, points: Sequence[xr.Dataset], config: Config) -> StudyOutput:
        """Return tables and figures of stored points.

        Args:
            points: as measured; varied keys are attributes.
            config: configuration of the study.
        """
        raise NotImplementedError(f"{type(self).__name__} must define what is shown")


def make_study_type(config: Config, make: Callable[[Config], Any]) -> StudyType:
    """Instantiate the study type of a configuration.

    Raises:
        ValueError: the object is not a study type.
    """
    study_type = make(config.kind)
    if not isinstance(study_type, StudyType):
        raise ValueError(f"kind={config.kind} must be made from {StudyType.__module__}.StudyType")
    return study_type


def prepare_points(
    config: ComposedConfig, make: Callable[[Config], Any], swept: Mapping[str, Any] | None = None,
    cache: dict[str, Any] | None = None, points: Sequence[GridPoint] | None = None,
) -> list[PreparedPoint]:  # fmt: skip
    """Compose and validate every point of a configuration.

    Args:
        config: configuration of the study.
        make: instantiates a configuration.
        swept: the keys that the command sweeps, with their values in this configuration. One
            command runs several configurations, which differ in these keys.
        cache: objects made before, by their configuration; new objects are added.
        points: from `grid.compose`, if it was called before.

    Raises:
        ValueError: one sentence, for any value out of range at any point.
    """
    factory = Factory(make, {} if cache is None else cache)
    swept = swept or {}
    points = grid.compose(config, swept) if points is None else points
    prepared_points = []
    for point in make_study_type(config, factory.make_once).compose(points, config, swept):
        prepared = factory.make_once(point.config.kind).prepare(point, factory)
        spec = prepared.study_type.validate(prepared)
        prepared_points.append(prepared._replace(spec=spec))
    return prepared_points
