"""The roofline of a machine, a lower bound on a round's time: of whole rounds, and of their parts.

Bytes are counted as if each number that a round needs were moved once for each pass of the
algorithm, whatever XLA compiles; caches are ignored.

A part of a round at d = 5 is a function of one run, compiled, batched and scanned alone, over the
state of runs in the middle of their horizon. Its inputs in a turn wait for the turn before, so that
XLA computes nothing once for all turns. Parts alone lack the kernels in which XLA joins neighbours,
and write arrays that a whole round would not. The table therefore shows their sum and the whole
round.
"""

import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import cases
from benchmarks.cases import ACQB
from benchmarks.measure import Case, least, measure
from cqbjax.core import backend, linalg, rng, simulate
from cqbjax.core.pytree import as_arrays
from cqbjax.core.types import Action, Observation, Problem, blank_action
from cqbjax.engine.sweep import sweep
from cqbjax.estimation import block_belief, gaussian, likelihood, loss_model, newton_cg
from cqbjax.estimation import paged_history as history
from cqbjax.estimation import running_estimate as running
from cqbjax.estimation.belief import Interaction
from cqbjax.policies.assortments import choose_query_and_servers
from cqbjax.sources import Synthetic
from tests.reference.scenarios import draw_instances, unit_vectors

FLOAT = 4  # bytes
# Bytes that one measurement moves; smallest and largest array that it streams repeatedly.
MOVED, SMALLEST, LARGEST = 2**30, 2**16, 2**28
TRIES = 5
# Side of the matrix product, and size of the exponential, by which operations are measured.
SIDE, NUMBERS = 1024, 2**14
SERVERS = (3, 14, 112)
HORIZON = {5: 2000, 384: 400}


class Peak(NamedTuple):
    """The operations of one core in a second.

    Attributes:
        flops: sums and products, in a product of matrices.
        exponentials: of numbers in its caches.
    """

    flops: float
    exponentials: float

    def bound(
        self, moved: float, operations: float, exponentials: float, runs: int, quick: bool
    ) -> float:
        """Return the least seconds of the work of one run, in a batch of `runs`.

        The larger of bytes over the bandwidth of as many bytes, and of operations over their peak.
        """
        bandwidth = stream(int(moved * runs / 2), 1, MOVED // 64 if quick else MOVED)
        computed = operations / self.flops + exponentials / self.exponentials
        return max(moved / bandwidth, computed)


def stream(size: int, cores: int = 1, moved: int = MOVED) -> float:
    """Measure the bytes a second, read and written, of adding one to an array in place.

    Args:
        size: bytes of the array, clipped to `SMALLEST` and `LARGEST`.
        cores: threads with an equal share of it.
        moved: bytes read and written in each try; the fastest try counts.
    """
    share = min(max(size, SMALLEST), LARGEST) // cores
    turns = max(1, moved // (2 * share * cores))

    def add(array: np.ndarray) -> None:
        for _ in range(turns):
            np.add(array, np.float32(1), out=array)

    arrays = [np.zeros(share // FLOAT, np.float32) for _ in range(cores)]
    with ThreadPoolExecutor(cores) as pool:
        best = least(lambda: list(pool.map(add, arrays)), TRIES)
    return 2 * share * cores * turns / best


def measure_peak(turns: int = 20) -> Peak:
    """Measure the operations of one core in a second of its processor time."""

    def seconds(step: Callable[[jax.Array], jax.Array], over: jax.Array, turns: int) -> float:
        many = jax.jit(lambda x: jax.lax.fori_loop(0, turns, lambda _, x: step(x), x))
        return least(lambda: jax.block_until_ready(many(over)), TRIES, time.process_time)

    product = seconds(lambda x: (x @ x) * 1e-3, jnp.ones((SIDE, SIDE)), turns)
    exponential = seconds(lambda x: jnp.exp(-x), jnp.ones(NUMBERS), 100 * turns)
    return Peak(2.0 * SIDE**3 * turns / product, 100.0 * NUMBERS * turns / exponential)


def bytes_a_round(problem: Problem, waiting: float, slots: int) -> float:
    """Return the bytes that one round of ACQB has to move.

    Over a pool (`newton_cg`): the image of each offered server in K + 4 passes, each of which needs
    a sum of the one before over the whole table: S w; the change written, and S' of the residual
    with it (read and written); each conjugate-gradient step but the last, S y and S' of its
    curvature; the last S y. In addition the waiting queries' rows of every server's image and
    score, and the numbers of the offered servers for each row.

    With few dimensions (`running`): the queue's features, the roots, one page of each offered block
    read, one row written, and the models of the offered blocks, their pages and T read and written.

    Args:
        problem: shapes.
        waiting: queries in the queue.
        slots: of the queue.
    """
    size, dim, servers = problem.assortment_size, problem.dim, problem.num_servers
    queue = 6 * slots
    if not loss_model.depth(problem):
        table = problem.num_rows
        passes = 2 + size + newton_cg.POOL_STEPS[1] + 1
        numbers = size * table * (passes * dim + 4 + (servers if size > 1 else 0))
        return FLOAT * (numbers + waiting * servers * (dim + 1) + queue)
    second = int(np.prod(loss_model.second_shape(problem)))
    row = likelihood.row_size(problem)
    block = (
        row * (history.page_size(problem) + 1) + 6 * loss_model.vector_size(problem) + 2 * second
    )
    samples = gaussian.num_samples(size) * servers * dim
    roots = (servers + size) * dim * dim
    return float(FLOAT * (slots * dim + queue + roots + samples + size * block))


def rows(quick: bool, log: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """Compare rounds a second with the roofline, alone and in batches, on one core and on all.

    Args:
        quick: one case.
        log: receives a line before each case.

    Yields:
        A row a case: `case`, `runs` in a batch of each core, `devices`, `rounds_a_second`,
        `floor_kb` of a round-run, `gb_a_second` of the streaming add over the bytes of the batches,
        and `share_of_floor`, the roofline's seconds over those measured.
    """
    for case in list_cases(quick):
        log(f"{case.name}: {case.batch} on each of {case.num_devices}")
        (row,) = measure(case)
        problem = case.source.problem(case.assortment_size, case.horizon)
        needed = bytes_a_round(problem, _mean_queue(case), row["slots"])
        moved, cores = MOVED // 64 if quick else MOVED, len(case.devices)
        bandwidth = stream(int(row["bytes_a_run"] * case.at_once), cores, moved)
        speed = row["rounds_a_second"] or row["whole_rounds_a_second"]
        yield {
            "case": case.name, "runs": case.batch, "devices": cores,
            "rounds_a_second": round(speed), "floor_kb": round(needed / 1e3, 1),
            "gb_a_second": round(bandwidth / 1e9, 1),
            "share_of_floor": float(f"{needed * speed / bandwidth:.2g}"),
        }  # fmt: skip


def list_cases(quick: bool) -> Iterator[Case]:
    """Yield the cases: K = 1, alone on a core, on all cores, in a batch."""
    every = len(jax.devices())
    for dim in (5,) if quick else HORIZON:
        for servers in SERVERS[:1] if quick else SERVERS:
            source = Synthetic(num_servers=servers) if dim == 5 else unit_vectors(servers, dim)
            for batch, cores in ((1, 1), (1, every), (16, every)):
                yield cases.acqb(
                    f"d={dim} N={servers} K=1", source, batch=batch, num_devices=cores,
                    horizon=20 if quick else HORIZON[dim], chunks=2 if batch > 1 else 5,
                )  # fmt: skip


def _mean_queue(case: Case) -> float:
    """Return the mean queue of the case's runs."""
    data = sweep(
        case.policies, case.source, arrival_rate=[case.arrival_rate], num_seeds=case.at_once,
        horizon=case.horizon, K=case.assortment_size, chunk=case.batch,
        devices=case.devices,
    )  # fmt: skip
    return float(data.queue_length.sel(policy="acqb").mean())


RUNS, RATE, SLOTS, PART_HORIZON, MIDDLE, TURNS, REPEATS = 128, 0.7, 64, 1000, 500, 300, 7
# Least seconds of one timing.
LONG = 0.1
# Arrays of a run, by name.
State = dict[str, Any]
WHOLE, SUM = "whole round", "sum of parts"


class RoundPart(NamedTuple):
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
    RoundPart("draw", "key", _draw),
    RoundPart("sample", "posterior theta normal", _sample),
    RoundPart("score", "features drawn", _score),
    RoundPart("choose", "queue optimistic draws", _choose),
    RoundPart("posterior V", "posterior new", _posterior),
    RoundPart("model: gradient, Hessian", "work new", _system, 2),
    RoundPart("model: solve (in CG's place)", "system new theta", _solve),
    RoundPart("row: gradient, Hessian, T", "new theta", _row_model),
    RoundPart("page: gradient, Hessian", "page new theta", _page_model),
    RoundPart("update: pages, models", "whole new", _move, 1, _moved_numbers),
    RoundPart("queue, choice, records", "instance carry round", _rest, 1, _rest_numbers),
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


def part_rows(quick: bool, log: Callable[[str], None]) -> Iterator[dict[str, Any]]:
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
    peak = measure_peak(1 if quick else 20)
    for size in (1,) if quick else (1, 2):
        log(f"parts of a round at K={size}, {runs} runs")
        problem = Synthetic().problem(size, PART_HORIZON)
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


def _scan(part: RoundPart, problem: Problem, inputs: State, turns: int) -> Callable[[], Any]:
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


def _count_work(part: RoundPart, problem: Problem, inputs: State) -> tuple[float, float, float]:
    """Return the bytes that one run moves, its operations and its exponentials."""
    one_run = jax.tree.map(lambda leaf: leaf[0], inputs)

    def step(of: State) -> State:
        return part.step(problem, **of)

    cost = jax.jit(step).lower(one_run).cost_analysis() or {}
    leaves = jax.tree.leaves((one_run, jax.eval_shape(step, one_run)))
    numbers = part.numbers(problem) if part.numbers else sum(leaf.size for leaf in leaves)
    operations, exponentials = (cost.get(key, 0.0) for key in ("flops", "transcendentals"))
    return float(FLOAT * numbers), operations, exponentials


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
