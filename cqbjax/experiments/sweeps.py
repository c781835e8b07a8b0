"""The ordinary study type: policies on the same random draws, as in the paper's figures and tables.

Points of one program share a batch; a shard holds as many as memory allows.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import jax
import xarray as xr

from cqbjax.core.labels import OPTIMAL
from cqbjax.engine import memory
from cqbjax.engine.batches import plan_sweep
from cqbjax.engine.progress import Reporter
from cqbjax.engine.runner import Estimate
from cqbjax.engine.spec import PerSeed, SweepSpec, choose_records
from cqbjax.engine.sweep import estimate_plan, run_plan
from cqbjax.engine.validation import replace_policies
from cqbjax.experiments import display, study
from cqbjax.experiments.configs import Config
from cqbjax.experiments.grid import PreparedPoint
from cqbjax.experiments.study_types import OutputTable, StudyOutput, StudyType
from cqbjax.experiments.validation import to_list
from cqbjax.offline.policies import select_untrained

# The arrays of a shard, in bytes.
MAX_SHARD_BYTES = 500_000_000
# A figure with more pairs of panels would be illegible: it shows only the last rounds.
MOST_PANELS = 9
BYTES_A_RECORD = 17  # queue length, regret, departures, explored, a share of the optimal policy's


@dataclasses.dataclass(frozen=True)
class Sweep(StudyType):
    """Policies, arrival rates and seeds, run by the simulator."""

    display_keys: ClassVar[tuple[str, ...]] = ("kind",)
    is_sweep: ClassVar[bool] = True
    extensible: ClassVar[bool] = True
    code_modules: ClassVar[tuple[str, ...] | None] = ()

    def validate(self, prepared: PreparedPoint) -> SweepSpec:
        """Validate a point, and return its sweep spec."""
        if set(prepared.policies) <= {OPTIMAL}:
            raise ValueError(
                "policy names only optimal, and there is nothing to compare with it: name another"
            )
        return study.validate_point(prepared)

    def estimate(self, left: Sequence[PreparedPoint], progress: Reporter) -> list[Estimate]:
        """Compile each program and time one call; train nothing and store nothing."""
        if not left:
            return []
        config, specs = left[0].point.config, []
        for one in left:
            policies, untrained = dict(one.policies), select_untrained(one.policies)
            if untrained:
                own = one.point.config
                problem = study.build_source(one).problem(own.K, own.horizon)
            for label, policy in untrained.items():
                policies[label] = PerSeed([policy.make_placeholder(problem)] * own.num_seeds)
            specs.append(_build_spec(one._replace(policies=policies)))
        return estimate_plan(plan_sweep(specs, config.chunk, config.memory_gb), progress)

    def divide(
        self, points: Sequence[PreparedPoint], min_shards: int = 1
    ) -> list[list[PreparedPoint]]:
        """Divide points into shards, in their order, by runs of a policy and by bytes.

        The key `shard_runs` of the first point limits the runs of a shard.
        """
        share = -(-sum(map(_count_runs, points)) // min_shards)
        max_runs = min(memory.shard_runs(jax.devices()), max(1, share))
        max_runs = int(points[0].point.config.get("shard_runs") or max_runs)
        shards: list[list[PreparedPoint]] = []
        runs, size = 0, 0
        for one in points:
            runs, size = runs + _count_runs(one), size + self.count_bytes(one)
            if not shards or runs > max_runs or size > MAX_SHARD_BYTES:
                shards.append([])
                runs, size = _count_runs(one), self.count_bytes(one)
            shards[-1].append(one)
        return shards

    def count_bytes(self, prepared: PreparedPoint) -> int:
        """Return the bytes of a point's arrays."""
        config = prepared.point.config
        records = choose_records(config.horizon, config.record_every)
        size = BYTES_A_RECORD * records.rounds.size
        if prepared.recorders:
            problem = study.build_source(prepared).problem(config.K, config.horizon)
            size += memory.record_bytes(prepared.recorders, problem, records)
        return size * (len(prepared.policies) + 1) * _count_runs(prepared)

    def run(
        self, shard: Sequence[PreparedPoint], progress: Reporter, resume: Path | None = None
    ) -> list[xr.Dataset]:
        """Train offline policies, and run the points in as few batches as possible."""
        config = shard[0].point.config
        specs = []
        for one in shard:
            trained = study.train_point(one, progress)
            specs.append(_build_spec(one._replace(policies=trained)))
        datasets = run_plan(plan_sweep(specs, config.chunk, config.memory_gb), progress, resume)
        return [
            data.assign_attrs(experiment=one.point.config.name, **study.describe_source(one))
            for data, one in zip(datasets, shard, strict=True)
        ]

    def select_rounds(self, config: Config, panels: int) -> list[int] | None:
        """Return the rounds that the table may show, if there are too many panels for curves."""
        if panels <= MOST_PANELS:
            return None
        # With several horizons the default rounds are not resolved yet.
        rounds = [t for t in config.table_rounds if isinstance(t, int)]
        return [*rounds, *(half for one in to_list(config.horizon) for half in (one // 2, one))]

    def show(self, points: Sequence[xr.Dataset], config: Config) -> StudyOutput:
        """Return the table and the curves, or final values over the keys if points are many.

        Args:
            points: from `results.load_points`.
            config: configuration of the study; `title, figure_policies, spread, queue, table,
                table_rounds` are read.
        """
        # Imported here, so that the first round does not wait for Matplotlib and Polars.
        from cqbjax.figures import draw_curves, draw_over_keys, users
        from cqbjax.results.metrics import find_recorded, list_panels

        drawn, labels = [], config.figure_policies or ()
        for point in points:
            some = [label for label in point.policy.values if label in labels]
            drawn.append(point.sel(policy=some) if some else point)
        fits_panels = sum(point.sizes["arrival_rate"] for point in points) <= MOST_PANELS
        if fits_panels:
            panels = [name for name in list_panels(drawn, config) if name not in users.ELSEWHERE]
            figure = draw_curves(drawn, panels, config.spread, config.get("scale", "linear"))
        else:
            figure = draw_over_keys(drawn)
        title, recorded = config.title or config.name, find_recorded(points)
        table = OutputTable(display.build_table(points, config), title, recorded=recorded)
        others = dict(users.draw_user_figures(drawn, fits_panels, config.spread))
        return StudyOutput({"": table}, {"": figure, **others})


def _count_runs(prepared: PreparedPoint) -> int:
    """Return the runs of each policy of a point."""
    config = prepared.point.config
    return len(config.arrival_rate) * int(config.num_seeds)


def _build_spec(prepared: PreparedPoint) -> SweepSpec:
    """Return the sweep spec of a point; a process that has not validated the point does so."""
    spec = prepared.spec or study.validate_point(prepared)
    return replace_policies(spec, prepared.policies)
