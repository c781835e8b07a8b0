"""A round at d = 5 part by part: the time of each part alone, and its roofline.

Each part is a function of one run, compiled, batched and scanned alone, over the state of runs in
the middle of their horizon. Its inputs in a turn wait for the turn before, so that XLA computes
nothing once for all turns. Parts alone lack the kernels in which XLA joins neighbours, and write
arrays that a whole round would not. The table therefore shows their sum and the whole round.
"""

import math
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from benchmarks import roofline
from benchmarks.cases import ACQB
from benchmarks.measure import least
from cqbjax.core import backend, linalg, rng, simulate
from cqbjax.core.pytree import as_arrays
from cqbjax.core.types import Action, Observation, Problem, blank_action
from cqbjax.estimation import block_belief, gaussian, likelihood, loss_model
from cqbjax.estimation import paged_history as history
from cqbjax.estimation import running_estimate as running
from cqbjax.estimation.belief import Interaction
from cqbjax.policies.assortments import choose_query_and_servers
from cqbjax.sources import Synthetic
from tests.reference.scenarios import draw_instances

RUNS, RATE, SLOTS, HORIZON, MIDDLE, TURNS, REPEATS = 128, 0.7, 64, 1000, 500, 300, 7
# Least seconds of one timing.
LONG = 0.1
# Arrays of a run, by name.
State = dict[str, Any]
WHOLE, SUM = "whole round", "sum of parts"


class Part(NamedTuple):
    """A part of a round.

    Attributes:
        name: in the table.
        inputs: names of the arrays that it reads.
        step: (problem, inputs) -> its outputs, by name; an output with the name of an input is the
            next turn's input.
        times: how often a round does it.
        numbers: problem -> numbers of one run that must move; None: all inputs and outputs.
    """

    name: str
    inputs: str
    step: Callable[..., State]
    times: int = 1
    numbers: Callable[[Problem], int] | None = None


class IdlePolicy:
    """Serve the first slot by the first servers and learn nothing: a round without a policy."""

    def select(self, key: jax.Array, state: Any, seen: Any) -> Action:
        """Take the first slot and servers."""
        del key, state
        return blank_action(seen.problem.assortment_size, False)

    def update(self, state: Any, *_: Any) -> Any:
        """Learn nothing."""
        return state


def _draw(problem: Problem, key: jax.Array) -> State:
    return {"draws": ACQB.draws(key, problem), "key": rng.round_key(key, 1)}


def _sample(problem: Problem, posterior: Any, theta: jax.Array, normal: jax.Array) -> State:
    alpha = ACQB.radius(problem, posterior.learnt)
    return {"drawn": gaussian.sample(posterior, theta, alpha, normal)}


def _score(problem: Problem, features: jax.Array, drawn: jax.Array) -> State:
    del problem
    return {"optimistic": block_belief.largest_inner(features, drawn)}


def _choose(problem: Problem, queue: Any, optimistic: jax.Array, draws: Any) -> State:
    seen = Observation(problem, None, queue, None, None, None, None, None)  # type: ignore[arg-type]
    rule = jnp.where(draws.explore < 0.1, 1, 4)
    return {"picked": choose_query_and_servers(rule, seen, optimistic, draws.query)}


def _posterior(problem: Problem, posterior: Any, new: Interaction) -> State:
    return {"posterior": gaussian.observe(posterior, problem, new)}


def _system(problem: Problem, work: Any, new: Interaction) -> State:
    return {"system": running._newton_system(work, problem, new, new.servers)}


def _solve(problem: Problem, system: Any, new: Interaction, theta: jax.Array) -> State:
    """Solve for both steps of a round: along its own row, and Newton's."""
    gradient, hessian = system
    step = linalg.add_barrier(running.row_step(system, problem, new, theta[new.servers]))
    return {"steps": (step, *running.solve(hessian, gradient + step.reshape(-1)))}


def _row_model(problem: Problem, new: Interaction, theta: jax.Array) -> State:
    rows = likelihood.encode_rows(problem, new, theta)
    return {"added": (rows, *running._expand(theta, problem, rows[:, :, None], new.servers))}


def _page_model(problem: Problem, page: jax.Array, new: Interaction, theta: jax.Array) -> State:
    return {"fresh": running._expand(theta, problem, page, new.servers)[0]}


def _move(problem: Problem, whole: Any, new: Interaction) -> State:
    """Move the arrays of an estimate's round and compute almost nothing."""
    at = new.servers
    model, lost, second = linalg.add_barrier((whole.model[at], whole.lost[at], whole.second[at]))
    row = jnp.ones((len(at), likelihood.row_size(problem)))
    page, stored = history.append(whole.pages, at, row, new.valid)
    stored = stored._replace(models=stored.models.at[page].add(model))
    page, stored = history.next_page(stored, at, new.valid)
    read = linalg.add_barrier(history.read_rows(stored, page))
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
    page = row * (history.page_size(problem) + 1)
    return problem.assortment_size * (page + 8 * vector + 2 * second)


def _rest(problem: Problem, instance: Any, carry: Any, round: jax.Array) -> State:  # noqa: A002
    after, _ = simulate.run_round(IdlePolicy(), problem, instance, carry, round)  # type: ignore[arg-type]
    return {"carry": after, "round": round + 1}


def _rest_numbers(problem: Problem) -> int:
    """Count the queue and its features read and written, and the round's few other numbers."""
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


def _state(problem: Problem, instance: Any, carry: Any, round_: jax.Array) -> State:
    """Return the arrays of one run at the beginning of a round, and within the round."""
    seen = simulate.observe(ACQB, problem, instance, carry, round_)
    posterior, whole = carry.state.belief
    state = {
        "instance": instance, "carry": carry._replace(state=()), "round": round_,
        "key": rng.round_key(instance.key, round_), "queue": carry.queue,
        "features": seen.features, "posterior": posterior, "theta": whole.theta, "whole": whole,
    }  # fmt: skip
    action = ACQB.select(state["key"], carry.state, seen)
    row, served = carry.queue.row[action.slot], seen.features[action.slot]
    new = Interaction(round_, row, served, action.servers, jnp.int32(0), jnp.bool_(True))
    at = new.servers
    state["new"], state["work"] = new, whole._replace(
        model=whole.model[at], lost=whole.lost[at], second=whole.second[at], pages=None
    )  # fmt: skip
    state["page"] = history.read_rows(whole.pages, whole.pages.numbers[at, 0])
    state |= {"draws": _draw(problem, state["key"])["draws"]} | _system(problem, state["work"], new)
    state["normal"] = state["draws"].normal
    state |= _sample(problem, posterior, whole.theta, state["normal"])
    return state | _score(problem, seen.features, state["drawn"])


def rows(quick: bool, log: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """Time every part of a round of ACQB at d = 5, N = 5, K = 1 and 2.

    Args:
        quick: K = 1, few runs and turns.
        log: receives a line before each K.

    Yields:
        A row a part and K: `K`, `part`, `times` a round, `microseconds` of processor time of a
        round-run, the kB of its inputs and outputs, its operations and exponentials as written,
        `floor` in microseconds, the larger of bytes over bandwidth and operations over their peak,
        and `share_of_floor`. Then their sum, and the whole round.
    """
    runs, turns, repeats = (4, 3, 1) if quick else (RUNS, TURNS, REPEATS)
    peak = roofline.measure_peak(1 if quick else 20)
    for size in (1,) if quick else (1, 2):
        log(f"parts of a round at K={size}, {runs} runs")
        problem = Synthetic().problem(size, HORIZON)
        state, whole = _run_to_middle(problem, runs, turns)
        seconds = _least(whole, turns * runs, repeats)
        total = [0.0, 0.0, 0.0, 0.0, 0.0]
        for part in PARTS:
            inputs = {name: state[name] for name in part.inputs.split()}
            taken = _least(_scan(part, problem, inputs, turns), turns * runs, repeats)
            work = _count_work(part, problem, inputs)
            own = [part.times * x for x in (taken, *work, peak.bound(*work, runs, quick))]
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


def _compile(function: Any, *arguments: Any) -> Callable[[], Any]:
    """Compile a function of batched trees as a sweep is, and return a call on the arguments."""
    lowered = jax.jit(function).lower(*arguments)
    program = backend.compile_lowered(lowered, jax.devices()[0].platform)
    return lambda: jax.block_until_ready(program(*arguments))


def _run_to_middle(problem: Problem, runs: int, turns: int) -> tuple[State, Callable[[], Any]]:
    """Return the state of runs in the middle of their horizon, and a call of their whole rounds."""
    instances = draw_instances(Synthetic(), RATE, problem, range(runs))
    policy = as_arrays(ACQB)

    def play(carry: Any, first: int, rounds: int) -> Callable[[], Any]:
        def one(instance: Any, carry: Any) -> Any:
            at = simulate.Segment(jnp.int32(first), rounds, 1)
            return simulate.advance(policy, problem, instance, carry, at, 1)[0]

        return _compile(jax.vmap(one), instances, carry)

    begin = jax.vmap(lambda one: simulate.start(policy, problem, one, SLOTS))
    carry = play(_compile(begin, instances)(), 1, MIDDLE)()
    at = jax.vmap(lambda instance, carry: _state(problem, instance, carry, jnp.int32(MIDDLE + 1)))
    return _compile(at, instances, carry)(), play(carry, MIDDLE + 1, turns)


def _scan(part: Part, problem: Problem, inputs: State, turns: int) -> Callable[[], Any]:
    """Compile many turns of a part, each after the one before."""
    made = jax.eval_shape(jax.vmap(lambda of: part.step(problem, **of)), inputs)
    fresh = {k: v for k, v in made.items() if k not in inputs}
    empty = jax.tree.map(lambda one: jnp.zeros(one.shape, one.dtype), fresh)

    def turn(
        carried: tuple[State, State, Any], number: Any
    ) -> tuple[tuple[State, State, Any], None]:
        # Behind a barrier with the turn's number, which is carried: XLA cannot compute it early.
        leaves, tree = jax.tree.flatten((carried[0], number))
        of, number = jax.tree.unflatten(tree, linalg.force_barrier(tuple(leaves)))
        made = part.step(problem, **of)
        again, new = ({k: made[k] for k in names if k in made} for names in (of, fresh))
        return (of | again, new, number), None

    def many(of: State, empty: State) -> Any:
        return jax.lax.scan(turn, (of, empty, jnp.int32(0)), jnp.arange(turns))[0]

    return _compile(jax.vmap(many), inputs, empty)


def _count_work(part: Part, problem: Problem, inputs: State) -> tuple[float, float, float]:
    """Return the bytes that one run moves, its operations and its exponentials."""
    one_run = jax.tree.map(lambda leaf: leaf[0], inputs)

    def step(of: State) -> State:
        return part.step(problem, **of)

    cost = jax.jit(step).lower(one_run).cost_analysis() or {}
    leaves = jax.tree.leaves((one_run, jax.eval_shape(step, one_run)))
    numbers = part.numbers(problem) if part.numbers else sum(leaf.size for leaf in leaves)
    operations, exponentials = (cost.get(key, 0.0) for key in ("flops", "transcendentals"))
    return float(roofline.FLOAT * numbers), operations, exponentials


def _least(play: Callable[[], Any], rounds: int, repeats: int) -> float:
    """Return the least processor time of a round-run, seconds.

    Each timing is long, since the kernel charges other threads only when its clock ticks.
    """
    play()
    begun = time.perf_counter()
    play()
    plays = 1 + int(LONG / (time.perf_counter() - begun)) if repeats > 1 else 1

    def several() -> None:
        for _ in range(plays):
            play()

    return least(several, repeats, time.process_time) / plays / rounds
