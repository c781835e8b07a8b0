"""The cost of dynamics, recorders and the per-query log, in percent of the paper's round.

Each case runs between two runs of the round that it is compared with, in one process, and the
ratio of their times is taken. Other load on the machine so affects both equally. On a CPU the time
is processor time, which excludes other processes.
"""

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.cases import ACQB, BASELINES, CROWDED_SLOTS
from cqbjax import dynamics
from cqbjax.core.recorders import OPTIONAL, QueryLog
from cqbjax.core.scenario import with_dynamics
from cqbjax.core.types import Policy, Source
from cqbjax.engine import batches, programs, runner
from cqbjax.engine.validation import build_spec
from cqbjax.sources import ArrivalWrapper, BatchArrivals, Coin, DriftWrapper, PromptPool, Synthetic

# The round that costs are judged by, and the cheapest one, each with the slots that it needs.
POLICIES: Mapping[str, tuple[Policy, int]] = {
    "acqb": (ACQB, 64), "random": (BASELINES["random"], CROWDED_SLOTS),
}  # fmt: skip
HORIZON, BATCH, RATE, REPEATS = 1000, 64, 0.7, 9
ROUND, POOL = "the paper's round", "a round over a table"
TABLE_RECORDERS = ("dollars", "score")
QUICK = ("users=orbit", "record=attempts", "record=dollars")


class CostCase(NamedTuple):
    """A case, and the round that it is compared with.

    Attributes:
        what: its name in the table.
        against: the name of the round.
        source: where queries come from.
        record: names of recorders.
    """

    what: str
    against: str
    source: Source
    record: tuple[str, ...] = ()


def make_table() -> PromptPool:
    """Return a pool of 1,000 prompts with d = 5, N = 5, costs and scores."""
    draw = np.random.default_rng(0)
    contexts = draw.normal(size=(1000, 5))
    contexts /= np.linalg.norm(contexts, axis=1, keepdims=True)
    utilities = 1 + contexts @ draw.uniform(-2, 2, size=(5, 5))
    dollars, scores = draw.uniform(size=(2, 1000, 5))
    return PromptPool(
        contexts=jnp.asarray(contexts), utilities=jnp.asarray(utilities), pool_size=1000,
        dollars=dollars, scores=scores,
    )  # fmt: skip


def list_cases() -> list[CostCase]:
    """Return the two rounds; then each user and service model, source, recorder, and the log."""
    paper, table = Synthetic(), make_table()
    users = {
        "orbit": dynamics.Orbit(return_rate=0.1), "impatient": dynamics.Impatience(attempts=5),
        "impatient, patience": dynamics.Impatience(leave=0.01),
    }  # fmt: skip
    service = {
        "count=2": dynamics.ServiceChannels(count=2), "count=4": dynamics.ServiceChannels(count=4),
        "rounds": dynamics.ServiceTimes(rounds=2), "outages": dynamics.Outages(share=0.1),
        "lost": dynamics.LostFeedback(lost=0.1), "late": dynamics.DelayedFeedback(delay=10),
    }  # fmt: skip
    sources: dict[str, Source] = {ROUND: paper}
    sources |= {f"users={k}": with_dynamics(paper, [u], []) for k, u in users.items()}
    sources |= {f"service={k}": with_dynamics(paper, [], [s]) for k, s in service.items()}
    sources |= {
        "drift": DriftWrapper(source=paper, quarter=HORIZON),
        "arrivals=batches": ArrivalWrapper(source=paper, process=BatchArrivals(sizes=[1, 1])),
        "source=coin": Coin(success=0.6, num_servers=5), POOL: table,
    }  # fmt: skip
    cases = [CostCase(name, ROUND, source) for name, source in sources.items()]
    priced = with_dynamics(table, [], [dynamics.Prices(spread=0.01)])
    cases.append(CostCase("service=prices", POOL, priced))
    for name in OPTIONAL:
        against, source = (POOL, table) if name in TABLE_RECORDERS else (ROUND, paper)
        what = "queries=true" if name == QueryLog.name else f"record={name}"
        cases.append(CostCase(what, against, source, (name,)))
    return cases


def rows(quick: bool, log: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """Measure costs.

    Args:
        quick: few cases, rounds and repeats.
        log: receives a line before each step.

    Yields:
        A row a policy and case: `what`, `against` which round, `policy`, `seconds_a_round_run`, and
        `cost`, the median over `repeats` of its time less the round's, as a share of the latter,
        with its quartiles `cost_from` and `cost_to`.
    """
    every = {one.what: one for one in list_cases()}
    chosen = [every[what] for what in (QUICK if quick else every) if what != ROUND]
    horizon, repeats = (100, 2) if quick else (HORIZON, REPEATS)
    for label in list(POLICIES)[: 1 if quick else None]:
        for name in (ROUND, POOL):
            if some := [one for one in chosen if one.against == name]:
                log(f"costs in percent of {name}: {label}, {len(some)} cases")
                yield from _measure(label, every[name], some, horizon, repeats)


def _measure(
    label: str, base: CostCase, some: Sequence[CostCase], horizon: int, repeats: int
) -> Iterator[dict[str, Any]]:
    """Measure cases of one policy against one round: round, case, round, case, ..., round."""
    time_round = _timer(base, label, horizon)
    timers = [_timer(one, label, horizon) for one in some]
    measured: list[list[tuple[float, float]]] = [[] for _ in some]
    for _ in range(repeats):
        before = time_round()
        for own, timer in zip(measured, timers, strict=True):
            seconds, after = timer(), time_round()
            own.append((seconds, seconds / ((before + after) / 2) - 1))
            before = after
    rounds_run = horizon * BATCH * len(jax.devices())
    for one, own in zip(some, measured, strict=True):
        seconds, share = (statistics.median(each) for each in zip(*own, strict=True))
        quartiles = np.quantile([share for _, share in own], [0.25, 0.75])
        yield {
            "what": one.what, "against": one.against, "policy": label,
            "seconds_a_round_run": seconds / rounds_run, "cost": share,
            "cost_from": float(quartiles[0]), "cost_to": float(quartiles[1]), "repeats": repeats,
        }  # fmt: skip


def _timer(one: CostCase, label: str, horizon: int) -> Callable[[], float]:
    """Compile a case, run it once, and return a function that runs it and returns the seconds."""
    policy, slots = POLICIES[label]
    runs, own = BATCH * len(jax.devices()), {label: policy}
    whole = build_spec(
        own, one.source, [RATE], range(runs), horizon, capacity=slots, record=one.record
    )
    planned = batches.plan_sweep([dataclasses.replace(whole, policies=own)], BATCH)
    (group,) = planned.batches
    compiled, records = programs.compile_one(planned.program_spec(group, slots)), group.spec.records
    policies, instance, _ = runner.start_chunk(compiled, group, group.runs)
    clock = time.process_time if jax.devices()[0].platform == "cpu" else time.perf_counter

    def run() -> float:
        carry = jax.block_until_ready(compiled.start(policies, instance))
        begun = clock()
        for call in range(records.calls):
            first = 1 + call * records.per_call * records.every
            for stretch, _ in compiled.stretches(first):
                carry, recorded = compiled.advance(policies, instance, carry, stretch)
                # To the host, as in a sweep.
                jax.tree.map(np.asarray, recorded)
        jax.block_until_ready(carry)
        return clock() - begun

    run()
    return run
