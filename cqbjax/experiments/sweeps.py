"""The ordinary kind of study: policies on the same draws, as a figure or a table of the paper has.

Points of one program share a batch; a shard holds as many as memory allows.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

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
from cqbjax.experiments.study_types import StudyOutput, StudyType

# Of the arrays of a shard, in bytes.
MOST_BYTES = 500_000_000
BYTES_A_RECORD = 17  # queue length, regret, departures, explored, and a share of the optimal one


@dataclasses.dataclass(frozen=True)
class Sweep(StudyType):
    """Policies, arrival rates and seeds, run by the simulator."""

    display_keys: ClassVar[tuple[str, ...]] = ("kind",)
    is_sweep: ClassVar[bool] = True
    extensible: ClassVar[bool] = True
    code_modules: ClassVar[tuple[str, ...] | None] = ()

    def validate(self, ready: PreparedPoint) -> SweepSpec:
        """Validate a point, and return its sweep spec."""
        if set(ready.policies) <= {OPTIMAL}:
            raise ValueError(
                "policy names only optimal, and there is nothing to compare with it: name another"
            )
        return study.validate_point(ready)

    def count_rounds(self, ready: PreparedPoint) -> int:
        """Return the round-runs of a point's policies, the optimal one's included."""
        return len({*ready.policies, OPTIMAL}) * _runs(ready) * int(ready.point.config.horizon)

    def estimate(self, left: Sequence[PreparedPoint], progress: Reporter) -> list[Estimate]:
        """Compile each program and run it for a moment; nothing is trained, and nothing stored."""
        if not left:
            return []
        config = left[0].point.config
        specs = [_spec_of(_blank(each)) for each in left]
        return estimate_plan(plan_sweep(specs, config.chunk, config.memory_gb), progress)

    def divide(self, ready: Sequence[PreparedPoint], fewest: int = 1) -> list[list[PreparedPoint]]:
        """Divide points into shards, in their order.

        The first one's `shard_runs` says how many runs of a policy a shard has at most.
        """
        most_runs = _most_runs(ready, fewest)
        shards: list[list[PreparedPoint]] = []
        runs, size = 0, 0
        for one in ready:
            own, own_size = _runs(one), self.count_bytes(one)
            if not shards or runs + own > most_runs or size + own_size > MOST_BYTES:
                shards.append([])
                runs, size = 0, 0
            shards[-1].append(one)
            runs, size = runs + own, size + own_size
        return shards

    def count_bytes(self, ready: PreparedPoint) -> int:
        """Return the bytes of a point's arrays."""
        config = ready.point.config
        records = choose_records(config.horizon, config.record_every)
        size = BYTES_A_RECORD * records.rounds.size
        if ready.recorders:
            problem = study.build_source(ready).problem(config.K, config.horizon)
            size += memory.record_bytes(ready.recorders, problem, records)
        return size * (len(ready.policies) + 1) * _runs(ready)

    def run(
        self, shard: Sequence[PreparedPoint], progress: Reporter, resume: Path | None = None
    ) -> list[xr.Dataset]:
        """Train what learns, and run the points, all that can be in one batch."""
        config = shard[0].point.config
        specs = []
        for one in shard:
            trained = study.train_point(one.point, one.source, one.policies, progress)
            specs.append(_spec_of(one._replace(policies=trained)))
        made = run_plan(plan_sweep(specs, config.chunk, config.memory_gb), progress, resume)
        return [
            data.assign_attrs(experiment=one.point.config.name, **study.describe_source(one))
            for data, one in zip(made, shard, strict=True)
        ]

    def describe_tuning(self, ready: PreparedPoint) -> dict[str, Any]:
        """Return label -> the routers that were fitted, as they were tuned."""
        return study.describe_tuning(ready.point, ready.source, ready.policies)

    def select_rounds(self, config: Config, panels: int) -> list[int] | None:
        """Return the rounds of the table, where there are too many points to draw their curves."""
        return None if panels <= display.MOST_PANELS else display.list_table_rounds(config)

    def show(self, points: Sequence[xr.Dataset], config: Config) -> StudyOutput:
        """Return the table and the curves; of many points, where these end over the keys."""
        return display.show_sweep(points, config)


def _runs(one: PreparedPoint) -> int:
    """Return the runs of each policy of a point."""
    return len(one.point.config.arrival_rate) * int(one.point.config.num_seeds)


def _most_runs(ready: Sequence[PreparedPoint], fewest: int) -> int:
    """Return how many runs of a policy a shard has at most."""
    asked = ready[0].point.config.get("shard_runs") if ready else None
    share = -(-sum(map(_runs, ready)) // fewest)
    return int(asked or min(memory.shard_runs(jax.devices()), max(1, share)))


def _spec_of(trained: PreparedPoint) -> SweepSpec:
    """Return the sweep spec of a point; a process that did not check the point checks it now."""
    spec = trained.spec or study.validate_point(trained)
    return replace_policies(spec, trained.policies)


def _blank(ready: PreparedPoint) -> PreparedPoint:
    """Return a point with policies of the right shapes in place of those that are to be trained."""
    config, each = ready.point.config, dict(ready.policies)
    problem = study.build_source(ready).problem(config.K, config.horizon)
    for label, policy in study.select_learnt(each).items():
        each[label] = PerSeed([policy.make_placeholder(problem)] * config.num_seeds)
    return ready._replace(policies=each)
