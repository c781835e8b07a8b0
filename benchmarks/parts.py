"""A round at d = 5 part by part: the time of each alone, beside the least that it could take.

Each part is a function of one run, compiled, batched and scanned by itself over what runs in the
middle of their horizon hold. What it is given in a turn waits for the turn before, so that nothing
is computed once for all turns. Parts alone lack the kernels in which XLA joins neighbours, and
write what a whole round would not: their sum is set beside the whole.
"""

import math
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from benchmarks import floors
from benchmarks.cases import ACQB
from benchmarks.measure import least
from cqbjax.core import backend, linalg, rng, simulate
from cqbjax.core.pytree import arrays
from cqbjax.core.types import Action, Observation, Problem, blank_action
from cqbjax.estimation import (
    block_belief,
    gaussian,
    likelihood,
    loss_model,
    paged_history,
    running_estimate,
)
from cqbjax.estimation.belief import Interaction
from cqbjax.policies.picking import best_answer
from cqbjax.sources import Synthetic
from tests.reference.scenarios import draw_instances

RUNS, RATE, SLOTS, HORIZON, MIDDLE, TURNS, REPEATS = 128, 0.7, 64, 1000, 500, 300, 7
# Seconds that are timed at once, at least.
LONG = 0.1
# What a run holds, by name.
Held = dict[str, Any]


class Part(NamedTuple):
    """A part of a round.

    Attributes:
        name: as the table shows it.
        needs: what of a moment it reads, by name.
        step: problem, what it needs -> what it makes, by name: of what it needs, the next turn's.
        times: how often a round does it.
        numbers: problem -> numbers of one run that must move; None: all that it needs and makes.
    """

    name: str
    needs: str
    step: Callable[..., Held]
    times: int = 1
    numbers: Callable[[Problem], int] | None = None


class Still:
    """Serve the first slot by the first servers and learn nothing: a round without a policy."""

    def select(self, key: jax.Array, state: Any, seen: Any) -> Action:
        """Take the first."""
        del key, state
        return blank_action(seen.problem.assortment_size, False)

    def update(self, state: Any, *_: Any) -> Any:
        """Learn nothing."""
        return state


def moment(problem: Problem, instance: Any, carry: Any, round_: jax.Array) -> Held:
    """Return what one run holds at the beginning of a round, and on its way through it."""
    seen = simulate.observe(ACQB, problem, instance, carry, round_)
    posterior, whole = carry.state.belief
    held = {
        "instance": instance, "carry": carry._replace(state=()), "round": round_,
        "key": rng.round_key(instance.key, round_), "queue": carry.queue,
        "features": seen.features, "posterior": posterior, "theta": whole.theta, "whole": whole,
    }  # fmt: skip
    held |= _draw(problem, held["key"])
    held |= _sample(problem, posterior, whole.theta, held["draws"].normal)
    held |= _score(problem, seen.features, held["drawn"])
    action = ACQB.select(held["key"], carry.state, seen)
    row, served = carry.queue.row[action.slot], seen.features[action.slot]
    new = Interaction(round_, row, served, action.servers, jnp.int32(0), jnp.bool_(True))
    at = new.servers
    held["new"], held["work"] = (
        new,
        whole._replace(
            model=whole.model[at], lost=whole.lost[at], second=whole.second[at], pages=None
        ),
    )
    held["page"] = paged_history.read_rows(whole.pages, whole.pages.numbers[at, 0])
    return held | _system(problem, held["work"], new)


def _draw(problem: Problem, key: jax.Array) -> Held:
    return {"draws": ACQB.draws(key, problem), "key": rng.round_key(key, 1)}


def _sample(problem: Problem, posterior: Any, theta: jax.Array, normal: jax.Array) -> Held:
    alpha = ACQB.radius(problem, posterior.learnt)
    return {"drawn": gaussian.sample(posterior, theta, alpha, normal)}


def _score(problem: Problem, features: jax.Array, drawn: jax.Array) -> Held:
    del problem
    return {"optimistic": block_belief.largest_inner(features, drawn)}


def _choose(problem: Problem, queue: Any, optimistic: jax.Array, draws: Any) -> Held:
    seen = Observation(problem, None, queue, None, None, None, None, None)  # type: ignore[arg-type]
    rule = jnp.where(draws.explore < 0.1, 1, 4)
    return {"picked": best_answer(rule, seen, optimistic, draws.query)}


def _posterior(problem: Problem, posterior: Any, new: Interaction) -> Held:
    added = gaussian.observe(posterior, problem, new)
    return {"posterior": added}


def _system(problem: Problem, work: Any, new: Interaction) -> Held:
    return {"system": running_estimate._newton_system(work, problem, new, new.servers)}


def _solve(problem: Problem, system: Any, new: Interaction, theta: jax.Array) -> Held:
    """Solve for both steps of a round: along its own row, and Newton's."""
    gradient, hessian = system
    step = linalg.settle(running_estimate.row_step(system, problem, new, theta[new.servers]))
    return {"steps": (step, *running_estimate.solve(hessian, gradient + step.reshape(-1)))}


def _row_model(problem: Problem, new: Interaction, theta: jax.Array) -> Held:
    rows = likelihood.encode_rows(problem, new, theta)
    return {
        "added": (rows, *running_estimate._expand(theta, problem, rows[:, :, None], new.servers))
    }


def _page_model(problem: Problem, page: jax.Array, new: Interaction, theta: jax.Array) -> Held:
    return {"fresh": running_estimate._expand(theta, problem, page, new.servers)[0]}


def _move(problem: Problem, whole: Any, new: Interaction) -> Held:
    """Move what an estimate's round moves and compute next to nothing."""
    at = new.servers
    model, lost, second = linalg.settle((whole.model[at], whole.lost[at], whole.second[at]))
    row = jnp.ones((len(at), likelihood.row_size(problem)))
    page, stored = paged_history.append(whole.pages, at, row, new.valid)
    stored = stored._replace(models=stored.models.at[page].add(model))
    page, stored = paged_history.next_page(stored, at, new.valid)
    read = linalg.settle(paged_history.read_rows(stored, page))
    fresh = stored.models[page] + read[:, :1, 0]
    return {"whole": whole._replace(
        model=linalg.put_rows(whole.model, at, model + fresh),
        lost=linalg.put_rows(whole.lost, at, lost + fresh),
        second=whole.second.at[at].set(second + model[0, 0]),
        pages=stored._replace(models=stored.models.at[page].set(fresh)),
    ), "read": read}  # fmt: skip


def _moved_numbers(problem: Problem) -> int:
    """Count a page read, a row written, two pages' models and the blocks' read and written."""
    row, vector = likelihood.row_size(problem), loss_model.vector_size(problem)
    second = math.prod(loss_model.second_shape(problem))
    page = row * (paged_history.page_size(problem) + 1)
    return problem.assortment_size * (page + 8 * vector + 2 * second)


def _rest(problem: Problem, instance: Any, carry: Any, round: jax.Array) -> Held:  # noqa: A002
    after, _ = simulate.run_round(Still(), problem, instance, carry, round)  # type: ignore[arg-type]
    return {"carry": after, "round": round + 1}


def _rest_numbers(problem: Problem) -> int:
    """Count the queue and its features read and written, and the round's own few numbers."""
    return 2 * SLOTS * (problem.dim + 3) + 2 * problem.num_servers + problem.dim + 20


PARTS = (
    Part("draw", "key", _draw),
    Part("sample", "posterior theta normal", _sample),
    Part("score", "features drawn", _score),
    Part("choose", "queue optimistic draws", _choose),
    Part("posterior V", "posterior new", _posterior),
    Part("model: gradient, Hessian", "work new", _system, 2),
    Part("model: solve (in CG's place)", "system new theta", _solve),
    Part("row: gradient, Hessian, T", "new theta", _row_model),
    Part("page: gradient, Hessian", "page new theta", _page_model),
    Part("update: pages, models", "whole new", _move, 1, _moved_numbers),
    Part("queue, choice, records", "instance carry round", _rest, 1, _rest_numbers),
)
WHOLE, SUM = "whole round", "sum of parts"


def rows(quick: bool, say: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """Time every part of a round of ACQB at d = 5, N = 5, K = 1 and 2.

    Args:
        quick: K = 1, few runs and turns, to see that all works.
        say: is told what comes next.

    Yields:
        A row a part and K: `K`, `part`, `times` a round, `microseconds` of processor time of a
        round-run, the kB that it needs and makes, its operations and exponentials as they are
        written, `floor` in microseconds, the larger of bytes over bandwidth and operations over
        their peak, and `share_of_floor`. Then their sum, and the whole round.
    """
    runs, turns, repeats = (4, 3, 1) if quick else (RUNS, TURNS, REPEATS)
    peak = floors.peak(1 if quick else 20)
    for size in (1,) if quick else (1, 2):
        say(f"parts of a round at K={size}, {runs} runs")
        problem = Synthetic().problem(size, HORIZON)
        held, whole = _middle(problem, runs, turns)
        seconds = _least(whole, turns * runs, repeats)
        total = [0.0, 0.0, 0.0, 0.0, 0.0]
        for part in PARTS:
            taken = _least(_scanned(part, problem, held, turns), turns * runs, repeats)
            needed = _needed(part, problem, held)
            floor = peak.seconds(*needed, runs, quick)
            own = [part.times * x for x in (taken, *needed, floor)]
            total = [a + b for a, b in zip(total, own, strict=True)]
            yield _row(size, part.name, part.times, *own)
        yield _row(size, SUM, 1, *total)
        yield _row(size, WHOLE, 1, seconds, *total[1:])


def _row(size: int, name: str, times: int, *of: float) -> dict[str, Any]:
    taken, moved, operations, exponentials, floor = of
    return {
        "K": size, "part": name, "times": times, "microseconds": float(f"{1e6 * taken:.3g}"),
        "floor": float(f"{1e6 * floor:.2g}"), "share_of_floor": float(f"{floor / taken:.2g}"),
        "kB": round(moved / 1e3, 1), "operations": round(operations),
        "exponentials": round(exponentials),
    }  # fmt: skip


def _compiled(function: Any, *given: Any) -> Callable[[], Any]:
    """Compile a function of batched trees as a sweep is, and return what runs it on them."""
    lowered = jax.jit(function).lower(*given)
    program = backend.compile_lowered(lowered, jax.devices()[0].platform)
    return lambda: jax.block_until_ready(program(*given))


def _middle(problem: Problem, runs: int, turns: int) -> tuple[Held, Callable[[], Any]]:
    """Return what runs hold in the middle of their horizon, and what plays whole rounds of them."""
    instances = draw_instances(Synthetic(), RATE, problem, range(runs))
    policy = arrays(ACQB)

    def play(carry: Any, first: int, rounds: int) -> Callable[[], Any]:
        def one(instance: Any, carry: Any) -> Any:
            at = simulate.Stretch(jnp.int32(first), rounds, 1)
            return simulate.advance(policy, problem, instance, carry, at, 1)[0]

        return _compiled(jax.vmap(one), instances, carry)

    begin = jax.vmap(lambda one: simulate.start(policy, problem, one, SLOTS))
    carry = play(_compiled(begin, instances)(), 1, MIDDLE)()
    at = jax.vmap(lambda instance, carry: moment(problem, instance, carry, jnp.int32(MIDDLE + 1)))
    return _compiled(at, instances, carry)(), play(carry, MIDDLE + 1, turns)


def _needs(part: Part, held: Held) -> Held:
    held = held | {"normal": held["draws"].normal}
    return {name: held[name] for name in part.needs.split()}


def _scanned(part: Part, problem: Problem, held: Held, turns: int) -> Callable[[], Any]:
    """Compile many turns of a part, each after the one before."""
    given = _needs(part, held)
    made = jax.eval_shape(jax.vmap(lambda of: part.step(problem, **of)), given)
    fresh = {k: v for k, v in made.items() if k not in given}
    empty = jax.tree.map(lambda one: jnp.zeros(one.shape, one.dtype), fresh)

    def turn(carried: tuple[Held, Held, Any], number: Any) -> tuple[tuple[Held, Held, Any], None]:
        # Held with the turn's number, which is kept: XLA then knows nothing of it beforehand.
        leaves, tree = jax.tree.flatten((carried[0], number))
        of, number = jax.tree.unflatten(tree, linalg.hold(tuple(leaves)))
        made = part.step(problem, **of)
        again, new = ({k: made[k] for k in names if k in made} for names in (of, fresh))
        return (of | again, new, number), None

    def many(of: Held, empty: Held) -> Any:
        return jax.lax.scan(turn, (of, empty, jnp.int32(0)), jnp.arange(turns))[0]

    return _compiled(jax.vmap(many), given, empty)


def _needed(part: Part, problem: Problem, held: Held) -> tuple[float, float, float]:
    """Return the bytes that one run moves, its operations and its exponentials."""
    given = jax.tree.map(lambda leaf: leaf[0], _needs(part, held))

    def step(of: Held) -> Held:
        return part.step(problem, **of)

    counted = jax.jit(step).lower(given).cost_analysis() or {}
    leaves = jax.tree.leaves((given, jax.eval_shape(step, given)))
    numbers = part.numbers(problem) if part.numbers else sum(leaf.size for leaf in leaves)
    return (
        float(floors.FLOAT * numbers), counted.get("flops", 0.0),
        counted.get("transcendentals", 0.0),
    )  # fmt: skip


def _least(play: Callable[[], Any], rounds: int, repeats: int) -> float:
    """Return the least processor time of a round-run, seconds.

    Threads beside this one are charged when the kernel's clock ticks, so that each time is long.
    """
    play()
    begun = time.perf_counter()
    play()
    plays = 1 + int(LONG / (time.perf_counter() - begun)) if repeats > 1 else 1

    def several() -> None:
        for _ in range(plays):
            play()

    return least(several, repeats, time.process_time) / plays / rounds
