"""What worlds, recorders and rows of queries cost: in percent of the paper's round.

Each case runs right between two runs of the round that it is set against, in one process, and the
ratio of their times is taken; so what else the machine does touches both alike. On a CPU the time
is that of the processor, which others' work does not add to.
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
from cqbjax.core.recorders import NAMED, Queries
from cqbjax.core.setting import with_rules
from cqbjax.core.types import Policy, Source
from cqbjax.engine import batches, programs, runner
from cqbjax.engine.validation import build_spec
from cqbjax.sources import Arriving, Batches, Coin, Drifting, Routing, Synthetic

# The round that costs are judged by, and the lightest there is, each with the slots that it needs.
POLICIES: Mapping[str, tuple[Policy, int]] = {
    "acqb": (ACQB, 64), "random": (BASELINES["random"], CROWDED_SLOTS),
}  # fmt: skip
HORIZON, BATCH, RATE, REPEATS = 1000, 64, 0.7, 9
ROUND, POOL = "the paper's round", "a round over a table"
OF_TABLE = ("dollars", "score")
QUICK = ("users=orbit", "record=attempts", "record=dollars")


class Costing(NamedTuple):
    """What is measured, and what it is set against.

    Attributes:
        what: as the table shows it.
        against: the name of the round that it is in percent of.
        source: where queries come from.
        record: names of recorders.
    """

    what: str
    against: str
    source: Source
    record: tuple[str, ...] = ()


def table() -> Routing:
    """Return a pool of 1,000 prompts with d = 5, N = 5, costs and scores."""
    draw = np.random.default_rng(0)
    contexts = draw.normal(size=(1000, 5))
    contexts /= np.linalg.norm(contexts, axis=1, keepdims=True)
    utilities = 1 + contexts @ draw.uniform(-2, 2, size=(5, 5))
    dollars, scores = draw.uniform(size=(2, 1000, 5))
    return Routing(
        contexts=jnp.asarray(contexts), utilities=jnp.asarray(utilities), pool_size=1000,
        dollars=dollars, scores=scores,
    )  # fmt: skip


def rounds() -> dict[str, Costing]:
    """Return the rounds that others are set against, by name."""
    return {
        ROUND: Costing(ROUND, ROUND, Synthetic()), POOL: Costing(POOL, ROUND, table()),
    }  # fmt: skip


def costings() -> list[Costing]:
    """Return every kind of world beside the paper's, every recorder alone, and rows of queries."""
    paper = Synthetic()
    users = {
        "orbit": dynamics.Orbit(return_rate=0.1), "impatient": dynamics.Impatience(attempts=5),
        "impatient, patience": dynamics.Impatience(leave=0.01),
    }  # fmt: skip
    service = {
        "count=2": dynamics.ServiceChannels(count=2), "count=4": dynamics.ServiceChannels(count=4),
        "rounds": dynamics.ServiceTimes(rounds=2), "outages": dynamics.Outages(share=0.1),
        "lost": dynamics.LostFeedback(lost=0.1), "late": dynamics.DelayedFeedback(delay=10),
    }  # fmt: skip
    sources: dict[str, Source] = {
        "drift": Drifting(source=paper, quarter=HORIZON),
        "arrivals=batches": Arriving(source=paper, process=Batches(sizes=[1, 1])),
        "source=coin": Coin(success=0.6, num_servers=5), POOL: table(),
    }  # fmt: skip
    made = [Costing(f"users={k}", ROUND, with_rules(paper, [u], [])) for k, u in users.items()]
    made += [Costing(f"service={k}", ROUND, with_rules(paper, [], [s])) for k, s in service.items()]
    made += [Costing(name, ROUND, source) for name, source in sources.items()]
    priced = with_rules(table(), [], [dynamics.Prices(spread=0.01)])
    made.append(Costing("service=prices", POOL, priced))
    for name in NAMED:
        against = POOL if name in OF_TABLE else ROUND
        what = "queries=true" if name == Queries.name else f"record={name}"
        made.append(Costing(what, against, rounds()[against].source, (name,)))
    return made


def rows(quick: bool, say: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """Measure costs.

    Args:
        quick: two cases, few rounds and repeats, to see that all works.
        say: is told what comes next.

    Yields:
        A row a policy and case: `what` it is, `against` which round, `policy`,
        `seconds_a_round_run`, and `cost`, the median over `repeats` of its time less the round's,
        as a share of that, with its quartiles `cost_from` and `cost_to`.
    """
    every = [one for one in costings() if not quick or one.what in QUICK]
    horizon, repeats = (100, 2) if quick else (HORIZON, REPEATS)
    for label in list(POLICIES)[: 1 if quick else None]:
        for name, base in rounds().items():
            some = [one for one in every if one.against == name]
            if not some:
                continue
            say(f"costs in percent of {name}: {label}, {len(some)} cases")
            yield from _measured(label, base, some, horizon, repeats)


def _measured(
    label: str, base: Costing, some: Sequence[Costing], horizon: int, repeats: int
) -> Iterator[dict[str, Any]]:
    """Measure cases of one policy against one round: round, case, round, case, ..., round."""
    alone = _timed(base, label, horizon)
    timed = [_timed(one, label, horizon) for one in some]
    taken: list[list[tuple[float, float]]] = [[] for _ in some]
    for _ in range(repeats):
        before = alone()
        for own, run in zip(taken, timed, strict=True):
            seconds = run()
            after = alone()
            own.append((seconds, seconds / ((before + after) / 2) - 1))
            before = after
    rounds_run = horizon * BATCH * len(jax.devices())
    for one, own in zip(some, taken, strict=True):
        seconds, shares = (statistics.median(each) for each in zip(*own, strict=True))
        quartiles = np.quantile([share for _, share in own], [0.25, 0.75])
        yield {
            "what": one.what, "against": one.against, "policy": label,
            "seconds_a_round_run": seconds / rounds_run, "cost": shares,
            "cost_from": float(quartiles[0]), "cost_to": float(quartiles[1]), "repeats": repeats,
        }  # fmt: skip


def _timed(one: Costing, label: str, horizon: int) -> Callable[[], float]:
    """Compile a case, run it once, and return what runs it again and tells the seconds."""
    policy, slots = POLICIES[label]
    runs = BATCH * len(jax.devices())
    whole = build_spec(
        {label: policy}, one.source, [RATE], range(runs), horizon, capacity=slots, record=one.record
    )
    made = batches.plan_sweep([dataclasses.replace(whole, policies={label: policy})], BATCH)
    (group,) = made.batches
    compiled, records = programs.compile_one(made.program_spec(group, slots)), group.spec.records
    policies, instance, _ = runner.start_chunk(compiled, group, group.runs)
    clock = time.process_time if jax.devices()[0].platform == "cpu" else time.perf_counter

    def run() -> float:
        carry = jax.block_until_ready(compiled.start(policies, instance))
        begun = clock()
        for call in range(records.calls):
            first = 1 + call * records.per_call * records.every
            for stretch, _ in compiled.stretches(first):
                carry, recorded = compiled.advance(policies, instance, carry, stretch)
                # To the host, as a sweep takes them.
                jax.tree.map(np.asarray, recorded)
        jax.block_until_ready(carry)
        return clock() - begun

    run()
    return run
