"""The study types of the theorems and their proofs: slopes, switching, eigenvalues, events.

Computing modules (`reproduction.theory`) are imported when a study runs or is shown.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import xarray as xr

from cqbjax.core.labels import OPTIMAL
from cqbjax.datasets import DatasetSource
from cqbjax.engine.progress import Reporter
from cqbjax.engine.spec import SweepSpec, choose_records
from cqbjax.experiments import display, grid, study
from cqbjax.experiments.configs import Config
from cqbjax.experiments.grid import GridPoint, PreparedPoint
from cqbjax.experiments.study import Factory
from cqbjax.experiments.study_types import OutputTable, StudyOutput, StudyType
from cqbjax.experiments.sweeps import Sweep
from cqbjax.policies import Acqb

if TYPE_CHECKING:
    import polars as pl

# Keys of a sweep's batches and of its figures, which no study of a proof reads.
UNREAD = ("chunk", "shard_runs", "figure_policies", "spread", "scale", "queue", "table", "compared")
# Policies, source, arrival rate, problem and seeds.
Fixed = tuple[Any, Any, Any, Any, Any]


@dataclasses.dataclass(frozen=True)
class ProofStudy(StudyType):
    """A study of a proof, on synthetic queries; a subclass defines `measure_rate` and `show`."""

    unread_keys: ClassVar[tuple[str, ...]] = (*UNREAD, "record_every")

    def prepare(self, point: GridPoint, factory: Factory) -> PreparedPoint:
        """Return a point without its optimal policy.

        Raises:
            ValueError: it has no other policy.
        """
        prepared = super().prepare(point, factory)
        others = {label: policy for label, policy in prepared.policies.items() if label != OPTIMAL}
        if not others:
            kind = type(self).__name__
            raise ValueError(f"policy names only {OPTIMAL}, and {kind} needs another")
        return prepared._replace(policies=others)

    def validate(self, prepared: PreparedPoint) -> None:
        """Reject queries of a dataset, which has no theta* and no sigma_0 as in the paper."""
        super().validate(prepared)
        if isinstance(prepared.source, DatasetSource):
            raise ValueError(f"{type(self).__name__} is of source=synthetic")

    def measure(self, prepared: PreparedPoint, progress: Reporter) -> xr.Dataset:
        """Measure every run of every arrival rate, with more queue slots where they are needed."""
        config, source = prepared.point.config, study.build_source(prepared)
        problem, seeds = source.problem(config.K, config.horizon), grid.list_seeds(config)
        rest = problem, np.asarray(seeds)
        fixed = [(prepared.policies, source, rate, *rest) for rate in config.arrival_rate]
        by_rate = [self.measure_rate(config, one, progress) for one in fixed]
        coords = {"arrival_rate": list(config.arrival_rate)}
        return xr.concat(by_rate, "arrival_rate").assign_coords(coords)

    def measure_rate(self, config: Config, fixed: Fixed, progress: Reporter) -> xr.Dataset:
        """Measure all policies at one arrival rate.

        Args:
            config: of the point.
            fixed: policies, source, arrival rate, problem and seeds.
            progress: is notified of compiling and of the seconds of simulation.
        """
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Eigenvalues(ProofStudy):
    """The smallest eigenvalues of V, of all feedback and of exploration rounds alone."""

    code_modules: ClassVar[tuple[str, ...] | None] = ("reproduction.theory.quantities",)
    unread_keys: ClassVar[tuple[str, ...]] = UNREAD

    def validate(self, prepared: PreparedPoint) -> None:
        """Reject points that cannot run, queries of a dataset, and a policy without V."""
        super().validate(prepared)
        for label, policy in prepared.policies.items():
            if not isinstance(policy, Acqb):
                raise ValueError(f"policy {label} keeps no V: name ACQB or a relative of it")

    def measure_rate(self, config: Config, fixed: Fixed, progress: Reporter) -> xr.Dataset:
        """Measure the smallest eigenvalues of every run."""
        from reproduction.theory import quantities

        every = choose_records(config.horizon, config.record_every).every
        measured = quantities.measure_eigenvalues(*fixed, every, config.capacity, progress)
        return measured.assign_attrs(parameters=config.parameters, c1=float(config.c1))

    def show(self, points: Sequence[xr.Dataset], config: Config) -> StudyOutput:
        """Return the eigenvalues at the rounds of the table."""
        from reproduction.theory import quantities

        title, cells = config.title or config.name, _cells(points)
        tabulate = functools.partial(quantities.tabulate_eigenvalues, rounds=config.table_rounds)
        table = _tabulate(cells, ("K", "parameters", "arrival_rate"), tabulate)
        return StudyOutput({"": OutputTable(table, title)}, {})


@dataclasses.dataclass(frozen=True)
class Events(ProofStudy):
    """The events of the proofs, and the loss of a round, in every round of every run."""

    code_modules: ClassVar[tuple[str, ...] | None] = ("reproduction.theory.quantities",)

    def validate(self, prepared: PreparedPoint) -> None:
        """Reject points that cannot run, and policies for which the events are not defined."""
        super().validate(prepared)
        parameters = prepared.point.config.parameters
        if parameters != "shared":
            why = "the events are Algorithm 1's"
            raise ValueError(f"parameters={parameters} must be shared: {why}")
        for label, policy in prepared.policies.items():
            plain = isinstance(policy, Acqb) and not (policy.window or policy.exploit_size)
            if not plain or policy.optimism != "thompson":
                raise ValueError(f"policy {label} draws no samples of all it met: name ACQB")

    def measure_rate(self, config: Config, fixed: Fixed, progress: Reporter) -> xr.Dataset:
        """Examine every round of every run."""
        from reproduction.theory import quantities

        measured = quantities.measure_events(*fixed, config.capacity, progress)
        kappa, slackness = float(config.kappa), float(config.slackness)
        return measured.assign_attrs(kappa=kappa, slackness=slackness)

    def show(self, points: Sequence[xr.Dataset], config: Config) -> StudyOutput:
        """Return shares and means between the rounds of the table."""
        from reproduction.theory import quantities

        tabulate = functools.partial(quantities.tabulate_events, rounds=config.table_rounds)
        table = _tabulate(_cells(points), ("K", "kappa", "arrival_rate"), tabulate)
        return StudyOutput({"": OutputTable(table, config.title or config.name)}, {})


@dataclasses.dataclass(frozen=True)
class Switching(ProofStudy):
    """All switching queues of each policy on every sample path, with Lemma 8 counted.

    Attributes:
        block: rounds of the switch that are averaged together.
    """

    block: int = 10

    display_keys: ClassVar[tuple[str, ...]] = ("kind.block",)
    code_modules: ClassVar[tuple[str, ...] | None] = ("reproduction.theory.switching",)

    def __post_init__(self) -> None:
        """Validate the block."""
        if type(self.block) is not int or self.block < 1:
            wanted = "must be a whole number of rounds, at least 1"
            raise ValueError(f"kind.block={self.block} {wanted}")

    def count_rounds(self, prepared: PreparedPoint) -> int:
        """Return the rounds of all T + 1 processes, and of the policies alone."""
        config, policies = prepared.point.config, len(prepared.policies)
        runs = len(config.arrival_rate) * config.num_seeds
        return int(runs * config.horizon * (policies * (config.horizon + 1) + policies + 1))

    def measure_rate(self, config: Config, fixed: Fixed, progress: Reporter) -> xr.Dataset:
        """Count failures of Lemma 8 and the effect of each switch, path by path."""
        from reproduction.theory import switching

        return switching.measure(*fixed, config.capacity, progress)

    def show(self, points: Sequence[xr.Dataset], config: Config) -> StudyOutput:
        """Return how often each sentence fails, and the effect of a switch by its round."""
        from reproduction.theory import switching

        title = config.title or config.name
        cells = [
            cell.sel(policy=label).assign_attrs(policy=label, seeds=cell.sizes["seed"])
            for cell in _cells(points)
            for label in cell["policy"].values.tolist()
        ]
        keys = ("K", "arrival_rate", "policy", "seeds")
        rules = _tabulate(cells, keys, switching.tabulate_rules)
        average = functools.partial(switching.average_by_switch, block=self.block)
        averages = _tabulate(cells, keys, average)
        by_switch = OutputTable(averages, f"{title}: by_switch", printed=False)
        return StudyOutput({"": OutputTable(rules, title), "by_switch": by_switch}, {})


@dataclasses.dataclass(frozen=True)
class Slopes(Sweep):
    """A sweep, shown by its slopes on log-log axes; the stored arrays are those of a sweep.

    Attributes:
        windows: (first, last) of each window of rounds over which slopes are fitted.
    """

    windows: Any = ()

    unread_keys: ClassVar[tuple[str, ...]] = ("figure_policies", "spread", "scale", "queue")

    def __post_init__(self) -> None:
        """Validate the windows."""
        pairs = self.windows if isinstance(self.windows, list | tuple) else ()
        lists = [one if isinstance(one, list | tuple) else () for one in pairs]
        whole = all([type(t) for t in one] == [int, int] and 0 < one[0] < one[1] for one in lists)
        if not pairs or not whole:
            wanted = "must be a list of pairs of rounds, first < last"
            raise ValueError(f"kind.windows={self.windows} {wanted}")

    def validate(self, prepared: PreparedPoint) -> SweepSpec:
        """Reject points that cannot run, and a window beyond the horizon."""
        spec = super().validate(prepared)
        horizon, last = prepared.point.config.horizon, max(pair[1] for pair in self.windows)
        if last > horizon:
            ends = f"kind.windows={self.windows} ends in round {last:,}"
            raise ValueError(f"{ends}: horizon={horizon:,} must reach it")
        return spec

    def select_rounds(self, config: Config, panels: int) -> None:
        """Return None, all rounds: slopes are fitted to whole curves."""

    def show(self, points: Sequence[xr.Dataset], config: Config) -> StudyOutput:
        """Return the table of a sweep, and the slopes."""
        from reproduction.theory import slopes

        title = config.title or config.name
        fitted = OutputTable(slopes.table(points, self.windows), f"{title}: slopes on log-log axes")
        tables = {"": OutputTable(display.build_table(points, config), title), "slopes": fitted}
        return StudyOutput(tables, {})


def _cells(points: Sequence[xr.Dataset]) -> list[xr.Dataset]:
    """Return each arrival rate of each point, with its rate among the attributes."""
    return [
        point.sel(arrival_rate=rate).assign_attrs(arrival_rate=rate)
        for point in points
        for rate in point["arrival_rate"].values.tolist()
    ]


def _tabulate(
    cells: Sequence[xr.Dataset], keys: Sequence[str],
    tabulate: "Callable[[xr.Dataset], pl.DataFrame]",
) -> "pl.DataFrame":  # fmt: skip
    """Tabulate cells, with attributes of each in the first columns."""
    import polars as pl

    return pl.concat(
        tabulate(cell).select(*(pl.lit(cell.attrs[key]).alias(key) for key in keys), pl.all())
        for cell in cells
    )
