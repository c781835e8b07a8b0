"""Time a sweep by what it reports of its progress: compiling apart, the first chunk apart.

The clock listens where the progress bar does, so what is timed is `sweep` as a study calls it:
drawing instances, all chunks, all devices, recording. `sweep` waits for a call's records before it
reports the call, so no span ends early.
"""

import dataclasses
import importlib
import itertools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from cqbjax.core import backend
from cqbjax.core.types import Policy, Source
from cqbjax.engine import batches, programs
from cqbjax.engine.progress import Activity, Reporter
from cqbjax.engine.spec import Capacity, SweepSpec
from cqbjax.engine.sweep import estimate_specs, sweep
from cqbjax.engine.validation import build_spec

# More runs than this become copies of the policy: checking a source draws contexts for every seed.
MAX_SEEDS = 256
COPY_BYTES = 2**30
REPOSITORY = Path(__file__).resolve().parent.parent
CALL = "from benchmarks import measure; measure.called()"


class Span(NamedTuple):
    """One thing that a sweep did.

    Attributes:
        doing: `compiling` or `running`.
        label: the first label of the group.
        seconds: how long it took.
        rounds: round-runs done, without padding.
    """

    doing: Activity
    label: str
    seconds: float
    rounds: int


class Clock(Reporter):
    """Listen to a sweep and note when it did what."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self._begun = 0.0
        self._what: tuple[Activity, str] | None = None
        self._rounds = 0
        self._last = 0.0

    def doing(self, activity: Activity, label: str) -> None:
        """Begin a span; the one before ends with its last round, or here if it had none."""
        now = time.perf_counter()
        self._close(now)
        self._begun, self._what, self._rounds, self._last = now, (activity, label), 0, 0.0

    def advance(self, rounds: int) -> None:
        """Count rounds, done by now."""
        self._last = time.perf_counter()
        self._rounds += rounds

    def finish(self) -> list[Span]:
        """End the last span and return all of them."""
        self._close(time.perf_counter())
        return self.spans

    def _close(self, now: float) -> None:
        if self._what is not None:
            seconds = (self._last or now) - self._begun
            self.spans.append(Span(*self._what, seconds, self._rounds))
            self._what = None


@dataclasses.dataclass(frozen=True)
class Case:
    """One setting to measure.

    Attributes:
        name: of the problem, as the tables show it.
        policies: label -> policy.
        source: where queries come from.
        assortment_size: K.
        horizon: T, rounds.
        batch: runs that a device batches at once.
        chunks: how many batches a device goes through; the first is not counted if there are more.
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
        """Return how many runs all devices batch at once."""
        return self.batch * len(self.devices)

    def spec(self, label: str) -> SweepSpec:
        """Return what a sweep of one policy and one seed would run, the yardstick left out."""
        alone = {label: self.policies[label]}
        made = build_spec(
            alone, self.source, [self.arrival_rate], range(1), self.horizon, self.assortment_size,
            capacity=self.capacity,
        )  # fmt: skip
        return dataclasses.replace(made, policies=alone)

    def group(self, label: str) -> batches.Batch:
        """Return how such a sweep would run the policy."""
        return batches.plan_sweep([self.spec(label)], self.batch).batches[0]

    def slots(self, label: str) -> int:
        """Return the queue slots that every run of a policy starts with."""
        return self.group(label).initial_slots()

    def bytes_a_run(self, label: str) -> int:
        """Return the bytes that one run of a policy keeps on the device."""
        group = self.group(label)
        return group.run_bytes(group.initial_slots())


def listen(case: Case) -> list[Span]:
    """Sweep a case and return what was done when."""
    runs = case.chunks * case.at_once
    seeds = min(runs, MAX_SEEDS)
    copies = -(-runs // seeds)
    numbered = itertools.product(case.policies.items(), range(copies))
    clock = Clock()
    sweep(
        {(f"{label}/{i}" if i else label): policy for (label, policy), i in numbered},
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
        program, next to none where an earlier row has the same; `bytes_a_run`.
    """
    programs.clear_cache()  # so that compiling is timed, whatever ran before
    rows = []
    for label, policy in case.policies.items():
        # Alone: policies of one program would run in one batch.
        spans = listen(dataclasses.replace(case, policies={label: policy}))
        rows.append(_row(case, label, [span for span in spans if span.label == label]))
    return rows


def _row(case: Case, label: str, spans: list[Span]) -> dict[str, Any]:
    """Summarise one policy's spans."""
    problem = case.source.problem(case.assortment_size, case.horizon)
    running = [span.doing == "running" for span in spans]
    begun = running.index(True)  # several programs may have been waited for before
    again = running.index(False, begun) if False in running[begun:] else len(spans)
    first, repeats = spans[begun:again], spans[again:]
    useful = sum(span.rounds for span in first)
    whole = sum(span.seconds for span in (*first, *repeats) if span.doing == "running")
    return {
        "case": case.name, "policy": label, "d": problem.dim, "N": problem.num_servers,
        "K": case.assortment_size, "horizon": case.horizon, "batch": case.batch,
        "devices": len(case.devices), "slots": case.slots(label),
        "rounds_a_second": _steady(first, case.at_once * case.horizon),
        "whole_rounds_a_second": useful / whole,
        "repeated": sum(span.rounds for span in repeats) / useful,
        "bytes_a_run": case.bytes_a_run(label),
        "compile_seconds": sum(span.seconds for span in spans[:begun]),
    }  # fmt: skip


def _steady(chunks: list[Span], full: int) -> float | None:
    """Return the median rounds a second of full chunks, without the first where there are more.

    The first also compiles the small programs that hand out its seeds.
    """
    speeds = [span.rounds / span.seconds for span in chunks if span.rounds == full]
    # Chunks of which every run overflowed end early: then there is no steady speed to report.
    return float(statistics.median(speeds[1:] or speeds)) if speeds else None


def compile_again(case: Case) -> float:
    """Compile a case's first policy, running it for a moment alone, and return the seconds."""
    programs.clear_cache()
    return estimate_specs([case.spec(next(iter(case.policies)))], case.batch)[0].compiling


def child(words: Sequence[str], failed: str, environment: Mapping[str, str] | None = None) -> str:
    """Run Python in a process of its own, and return what it prints.

    Args:
        words: behind `python`.
        failed: what to say where it fails.
        environment: of the process; None: this one's.

    Raises:
        RuntimeError: it failed.
    """
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, check=False, env=environment,
        cwd=REPOSITORY,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{failed} failed: {done.stderr.strip()[-300:]}")
    return done.stdout


def elsewhere(function: Callable[..., Any], cache: Path, **told: Any) -> Any:
    """Call a function in a process of its own, and return what it returns, as JSON has it.

    Args:
        function: of a module.
        cache: JAX's compilation cache there.
        told: its arguments, JSON values.

    Raises:
        RuntimeError: it failed.
    """
    words = json.dumps([function.__module__, function.__name__, str(cache), told])
    printed = child(["-c", CALL, words], f"{function.__name__}, {told},")
    return json.loads(printed.splitlines()[-1])


def called() -> None:
    """Call the function that this process is told, and print what it returns."""
    module, name, cache, told = json.loads(sys.argv[1])
    backend.configure(Path(cache))
    print(json.dumps(getattr(importlib.import_module(module), name)(**told)))


def copy_bytes_a_second(size: int = COPY_BYTES, tries: int = 10) -> float:
    """Measure what the first device moves in a copy: bytes read and written, a second.

    Args:
        size: of the array, in bytes.
        tries: the fastest counts.
    """
    array = jax.device_put(jnp.zeros(size // 4, jnp.float32), jax.devices()[0])
    # A copy alone would be optimised away; one addition costs nothing beside the memory.
    copy = jax.jit(lambda x: x + 1)
    return 2 * size / least(lambda: copy(array).block_until_ready(), tries)


def least(
    play: Callable[[], Any], tries: int, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Return the least seconds of several plays; a first, which may compile, is not counted."""
    play()
    spent = []
    for _ in range(tries):
        begun = clock()
        play()
        spent.append(clock() - begun)
    return min(spent)
