"""Time a sweep by its progress reports: compiling separately, and the first chunk separately.

The clock receives the calls of the progress bar, so a study's own `sweep` is timed: drawing
instances, all chunks, all devices, recording. `sweep` waits for a call's records before it reports
the call, so no span ends early.
"""

import dataclasses
import itertools
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax

from cqbjax.core.types import Policy, Source
from cqbjax.engine import batches, programs
from cqbjax.engine.progress import Activity, Reporter
from cqbjax.engine.spec import Capacity
from cqbjax.engine.sweep import sweep
from cqbjax.engine.validation import build_spec

# More runs than this become copies of the policy: validating a source draws contexts of every seed.
MAX_SEEDS = 256


class Span(NamedTuple):
    """One activity of a sweep.

    Attributes:
        doing: `compiling` or `running`.
        label: the first label of the group.
        seconds: its duration.
        rounds: round-runs done, without padding.
    """

    doing: Activity
    label: str
    seconds: float
    rounds: int


class Clock(Reporter):
    """A progress reporter that records the spans of a sweep.

    Attributes:
        spans: in their order.
    """

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self._begun = 0.0

    def set_activity(self, activity: Activity, label: str) -> None:
        """Begin a span; the one before ends with its last round, or now if it had none."""
        self.finish()
        self.spans.append(Span(activity, label, 0.0, 0))
        self._begun = time.perf_counter()

    def advance(self, rounds: int) -> None:
        """Count rounds, done by now."""
        span, seconds = self.spans[-1], time.perf_counter() - self._begun
        self.spans[-1] = span._replace(seconds=seconds, rounds=span.rounds + rounds)

    def finish(self) -> list[Span]:
        """End the last span and return all spans."""
        if self.spans and not self.spans[-1].seconds:
            self.advance(0)
        return self.spans


@dataclasses.dataclass(frozen=True)
class Case:
    """One setting to measure.

    Attributes:
        name: of the problem, as the tables show it.
        policies: label -> policy.
        source: where queries come from.
        assortment_size: K.
        horizon: T, rounds.
        batch: runs in a batch of a device.
        chunks: batches of a device; the first is not counted if there are more.
        arrival_rate: queries a round.
        capacity: queue slots.
        num_devices: how many devices run it; None is all of them.
    """

    name: str
    policies: Mapping[str, Policy]
    source: Source
    assortment_size: int = 1
    horizon: int = 1000
    batch: int = 64
    chunks: int = 3
    arrival_rate: float = 0.7
    capacity: Capacity = "auto"
    num_devices: int | None = None

    @property
    def devices(self) -> list[jax.Device]:
        """Return the devices that run it."""
        return jax.devices()[: self.num_devices]

    @property
    def at_once(self) -> int:
        """Return the runs in a batch of all devices."""
        return self.batch * len(self.devices)

    def group(self, label: str) -> batches.Batch:
        """Return the group in which a sweep of one seed would run a policy, without the oracle."""
        alone = {label: self.policies[label]}
        made = build_spec(
            alone, self.source, [self.arrival_rate], range(1), self.horizon, self.assortment_size,
            capacity=self.capacity,
        )  # fmt: skip
        spec = dataclasses.replace(made, policies=alone)
        return batches.plan_sweep([spec], self.batch).batches[0]

    def bytes_a_run(self, label: str) -> int:
        """Return the bytes of one run of a policy on the device."""
        group = self.group(label)
        return group.run_bytes(group.initial_slots())


def listen(case: Case) -> list[Span]:
    """Sweep a case and return its spans."""
    runs = case.chunks * case.at_once
    seeds = min(runs, MAX_SEEDS)
    copies = itertools.product(case.policies.items(), range(-(-runs // seeds)))
    clock = Clock()
    sweep(
        {(f"{label}/{i}" if i else label): policy for (label, policy), i in copies},
        case.source, arrival_rate=[case.arrival_rate], num_seeds=seeds, horizon=case.horizon,
        K=case.assortment_size, capacity=case.capacity, chunk=case.batch,
        devices=case.devices, progress=clock,
    )  # fmt: skip
    return clock.finish()


def measure(case: Case) -> list[dict[str, Any]]:
    """Measure every policy of a case.

    Returns:
        A row a policy: what ran; `rounds_a_second` of its steady chunks (whole batches after the
        first, all its devices together); `whole_rounds_a_second` of all chunks with the repeats of
        overflowed runs; `repeated`, the share of runs repeated; `compile_seconds` of the first
        program, almost zero where an earlier row has the same; `bytes_a_run`.
    """
    programs.clear_cache()  # so that compiling is timed, whatever ran before
    rows = []
    for label, policy in case.policies.items():
        # Alone: policies that share a program would run in one batch.
        spans = listen(dataclasses.replace(case, policies={label: policy}))
        rows.append(_summarise(case, label, [span for span in spans if span.label == label]))
    return rows


def _summarise(case: Case, label: str, spans: list[Span]) -> dict[str, Any]:
    """Summarise one policy's spans in a row."""
    problem = case.source.problem(case.assortment_size, case.horizon)
    running = [span.doing == "running" for span in spans]
    begun = running.index(True)  # several programs may compile before
    again = running.index(False, begun) if False in running[begun:] else len(spans)
    first, repeats = spans[begun:again], spans[again:]
    useful = sum(span.rounds for span in first)
    whole = sum(span.seconds for span in (*first, *repeats) if span.doing == "running")
    # The median of full chunks, without the first, which also compiles the small programs that
    # draw its seeds. Chunks of which every run overflowed end early: there is no steady speed.
    full = case.at_once * case.horizon
    speeds = [span.rounds / span.seconds for span in first if span.rounds == full]
    return {
        "case": case.name, "policy": label, "d": problem.dim, "N": problem.num_servers,
        "K": case.assortment_size, "horizon": case.horizon, "batch": case.batch,
        "devices": len(case.devices), "slots": case.group(label).initial_slots(),
        "rounds_a_second": float(statistics.median(speeds[1:] or speeds)) if speeds else None,
        "whole_rounds_a_second": useful / whole,
        "repeated": sum(span.rounds for span in repeats) / useful,
        "bytes_a_run": case.bytes_a_run(label),
        "compile_seconds": sum(span.seconds for span in spans[:begun]),
    }  # fmt: skip


def time_calls(play: Callable[[], Any], tries: int) -> list[float]:
    """Return the seconds of each of several calls; the first one may compile."""
    spent = []
    for _ in range(tries):
        begun = time.perf_counter()
        play()
        spent.append(time.perf_counter() - begun)
    return spent
