"""A kind of study: its points, what fixes their numbers, how they run, what they show.

One loop serves every kind: points are composed and checked, the store is asked which of them are
there, what is missing runs here or on a cluster, shard by shard, and what is stored is shown, now
and by `cqbjax report`. An ordinary sweep (`sweeps.py`) is one of them; how to add another is told
in docs/how_to/add_a_kind_of_study.md.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import xarray as xr

from cqbjax.core.types import Policy
from cqbjax.engine.progress import Reporter
from cqbjax.engine.runner import Estimate
from cqbjax.engine.spec import SweepSpec
from cqbjax.experiments import grid, manifests, study, validation
from cqbjax.experiments.configs import Composed, Config
from cqbjax.experiments.grid import GridPoint, PreparedPoint
from cqbjax.experiments.study import Factory
from cqbjax.offline import OfflinePolicy
from cqbjax.results.index import CacheKey

if TYPE_CHECKING:
    import polars as pl

    from cqbjax.results.metrics import Metric


class OutputTable(NamedTuple):
    """A table that a study shows.

    Attributes:
        frame: of it.
        caption: above it; without one only the numbers are written, as CSV.
        printed: whether it is printed too.
        apart: columns of it that have tables of their own where they are many.
    """

    frame: "pl.DataFrame"
    caption: str
    printed: bool = True
    apart: "Mapping[str, Metric] | None" = None


class StudyOutput(NamedTuple):
    """What a study shows; a name ends a file's name, and the study's own has none: "".

    Attributes:
        tables: name -> table.
        figures: name -> Matplotlib's figure.
        lines: that are printed below.
    """

    tables: Mapping[str, OutputTable]
    figures: Mapping[str, Any]
    lines: Sequence[str] = ()


@dataclasses.dataclass(frozen=True)
class StudyType:
    """A kind of study; a subclass says `measure` and `show`, and whatever else is its own.

    Its fields are the keys `kind.NAME` of a configuration. One of the study's is asked to `compose`
    and to `show`; each point has its own, made of the point's configuration, which does the rest.

    Attributes:
        prefix: put before a study's name, where its files must not be those of the sweep of that
            name.
    """

    prefix: str = ""

    # Keys that no number follows from beside those of `manifests.FOR_SHOW`; `kind.NAME` is a field.
    display_keys: ClassVar[tuple[str, ...]] = ()
    # Keys that it does not read, `*` for all others; and those that it reads by itself, not only
    # through policies and a source.
    unread_keys: ClassVar[tuple[str, ...]] = ()
    read_keys: ClassVar[tuple[str, ...]] = ()
    # Whether its arrays are those of a sweep, which `results.load` combines.
    is_sweep: ClassVar[bool] = False
    # Whether arrival rates and seeds can be added to what is stored: each run's numbers follow from
    # its own rate and seed alone, and the arrays have both as dimensions.
    extensible: ClassVar[bool] = False
    # Modules where its computation begins; None: the kind's own.
    code_modules: ClassVar[tuple[str, ...] | None] = None

    def compose(
        self, points: Sequence[GridPoint], config: Composed, swept: Mapping[str, Any]
    ) -> list[GridPoint]:
        """Return the points that run: here, each combination of the lists of the grid.

        Args:
            points: these combinations, from `grid.compose`.
            config: of the study.
            swept: key -> value, what tells this configuration from others of its sweep.

        Raises:
            ValueError: a key has a value that it may not have.
        """
        del config, swept
        return list(points)

    def prepare(self, point: GridPoint, factory: Factory) -> PreparedPoint:
        """Return a point with what runs at it; its `policies` are what is stored one by one."""
        source = factory.make_once(point.config.source)
        policies = factory.policies(point.config.policy)
        return study.assemble_point(
            grid.resolve_rates(point, source), source, policies, factory, self
        )

    def validate(self, ready: PreparedPoint) -> SweepSpec | None:
        """Validate a point before anything is trained or compiled.

        Returns:
            Its sweep spec, which `PreparedPoint.spec` then holds; None if it does not use one.

        Raises:
            ValueError: in one sentence.
        """
        validation.validate_without_dynamics(ready.point.config, type(self).__name__)
        return study.validate_point(ready)

    def cache_key(self, ready: PreparedPoint) -> CacheKey:
        """Return the hash of all that a point's numbers follow from."""
        return manifests.cache_key_of(ready)

    def count_rounds(self, ready: PreparedPoint) -> int:
        """Return the rounds that a point simulates: of each policy, rate and seed the horizon."""
        config = ready.point.config
        runs = len(ready.policies) * len(config.arrival_rate) * config.num_seeds
        return int(runs * config.horizon)

    def estimate(self, left: Sequence[PreparedPoint], progress: Reporter) -> list[Estimate]:
        """Say what running points would take.

        Args:
            left: points, each with the policies that are to run.
            progress: told what is being done.
        """
        del progress
        return [
            Estimate(f"{one.point.name}: {self.count_rounds(one):,} rounds", 0, 0) for one in left
        ]

    def count_bytes(self, ready: PreparedPoint) -> int:
        """Return the bytes of a point's arrays, as far as they are known beforehand."""
        del ready
        return 0

    def divide(self, ready: Sequence[PreparedPoint], fewest: int = 1) -> list[list[PreparedPoint]]:
        """Divide points into what is run and stored together, and can be lost: here, a policy.

        Args:
            ready: points, each with the policies that are to run.
            fewest: shards to make, where there is enough to divide.
        """
        del fewest
        return [
            [one._replace(policies={label: policy})]
            for one in ready for label, policy in one.policies.items()
        ]  # fmt: skip

    def run(
        self, shard: Sequence[PreparedPoint], progress: Reporter, resume: Path | None = None
    ) -> list[xr.Dataset]:
        """Run the points of a shard.

        Args:
            shard: of `shards`.
            progress: told of compiling and of rounds done.
            resume: a folder where what is finished of the shard can be kept until it is stored.

        Returns:
            A dataset a point, whose attributes say the experiment and the source.
        """
        del resume
        return [
            self.measure(one, progress).assign_attrs(
                experiment=one.point.config.name, K=one.point.config.K, **study.describe_source(one)
            )
            for one in shard
        ]

    def measure(self, ready: PreparedPoint, progress: Reporter) -> xr.Dataset:
        """Run the policies of one point.

        Args:
            ready: a checked point; policies that learn offline are untrained (`study.train`).
            progress: told of compiling and of rounds done.

        Returns:
            Any variables, over a dimension `policy` of the policies' labels and over others, each
            with its coordinate; text and numbers as attributes.
        """
        raise NotImplementedError(f"{type(self).__name__} must say how a point is measured")

    def describe_tuning(self, ready: PreparedPoint) -> dict[str, Any]:
        """Return what was chosen for a point before it ran, by label: a note beside its arrays."""
        del ready
        return {}

    def select_rounds(self, config: Config, panels: int) -> list[int] | None:
        """Return the rounds that are read to be shown; None is all.

        Args:
            config: of the study.
            panels: points and arrival rates together.
        """
        del config, panels
        return None

    def show(self, points: Sequence[xr.Dataset], config: Config) -> StudyOutput:
        """Return tables and figures of stored points.

        Args:
            points: as they were measured; what was varied is among their attributes.
            config: of the study.
        """
        raise NotImplementedError(f"{type(self).__name__} must say what is shown")


def make_study_type(config: Config, make: Callable[[Config], Any]) -> StudyType:
    """Return the kind of study of a configuration.

    Raises:
        ValueError: it is none.
    """
    made = make(config.kind)
    if not isinstance(made, StudyType):
        raise ValueError(f"kind={config.kind} must be made from {StudyType.__module__}.StudyType")
    return made


def prepare_points(
    config: Composed,
    make: Callable[[Config], Any],
    make_policies: Callable[[Config], Mapping[str, Policy | OfflinePolicy]],
    swept: Mapping[str, Any] | None = None,
    kept: dict[str, Any] | None = None,
    points: Sequence[GridPoint] | None = None,
) -> list[PreparedPoint]:
    """Compose and check every point of a configuration.

    Args:
        config: of the study.
        make: makes an object of its configuration.
        make_policies: makes policies, by label.
        swept: key -> value, what tells this configuration from others of its sweep.
        kept: what was made before, by its configuration; new things are added.
        points: of `grid.compose`, where it was asked before.

    Raises:
        ValueError: in one sentence, for anything out of range at any point.
    """
    factory = Factory(make, make_policies, {} if kept is None else kept)
    swept = swept or {}
    combined = grid.compose(config, swept) if points is None else points
    ready = []
    for point in make_study_type(config, factory.make_once).compose(combined, config, swept):
        one = prepare_point(point, factory)
        ready.append(one._replace(spec=one.kind.validate(one)))
    return ready


def prepare_point(point: GridPoint, factory: Factory) -> PreparedPoint:
    """Return a point with what runs at it, all made of its configuration."""
    kind: StudyType = factory.make_once(point.config.kind)
    return kind.prepare(point, factory)
