"""What a machine can do at best, and what a round needs of it: a floor to set beside a time.

Bytes are counted as if each number that a round needs were moved once for each pass that the
algorithm itself asks for, whatever XLA makes of it; no cache is counted in anybody's favour.
"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import cases
from benchmarks.measure import Case, least, measure
from cqbjax.core.types import Problem
from cqbjax.engine.sweep import sweep
from cqbjax.estimation import (
    gaussian,
    likelihood,
    loss_model,
    newton_cg,
    paged_history,
)
from cqbjax.sources import Synthetic
from tests.reference.scenarios import unit_vectors

FLOAT = 4  # bytes
# Bytes that one measurement moves, and the least and most that it streams over again and again.
MOVED, SMALLEST, LARGEST = 2**30, 2**16, 2**28
TRIES = 5
# Side of the product, and numbers of the exponential, by which operations a second are measured.
SIDE, NUMBERS = 1024, 2**14
SERVERS = (3, 14, 112)
HORIZON = {5: 2000, 384: 400}


class Peak(NamedTuple):
    """What one core does in a second.

    Attributes:
        flops: sums and products, in a product of matrices.
        exponentials: of numbers that lie in its caches.
    """

    flops: float
    exponentials: float

    def seconds(
        self, moved: float, operations: float, exponentials: float, runs: int, quick: bool
    ) -> float:
        """Return the least that so much of one run takes, where so many runs are batched.

        The larger of bytes over the bandwidth of as many bytes, and of operations over their peak.
        """
        bandwidth = streamed(int(moved * runs / 2), 1, MOVED // 64 if quick else MOVED)
        computed = operations / self.flops + exponentials / self.exponentials
        return max(moved / bandwidth, computed)


def streamed(size: int, cores: int = 1, moved: int = MOVED) -> float:
    """Measure the bytes a second, read and written, of adding one to an array in place.

    Args:
        size: bytes of the array, kept within `SMALLEST` and `LARGEST`.
        cores: as many take an equal share of it, each on a thread of its own.
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


def peak(turns: int = 20) -> Peak:
    """Measure what one core does in a second, in its own time."""

    def seconds(step: Callable[[jax.Array], jax.Array], over: jax.Array, turns: int) -> float:
        many = jax.jit(lambda x: jax.lax.fori_loop(0, turns, lambda _, x: step(x), x))
        return least(lambda: jax.block_until_ready(many(over)), TRIES, time.process_time)

    product = seconds(lambda x: (x @ x) * 1e-3, jnp.ones((SIDE, SIDE)), turns)
    exponential = seconds(lambda x: jnp.exp(-x), jnp.ones(NUMBERS), 100 * turns)
    return Peak(2.0 * SIDE**3 * turns / product, 100.0 * NUMBERS * turns / exponential)


def bytes_a_round(problem: Problem, waiting: float, slots: int) -> float:
    """Return the bytes that one round of ACQB has to move.

    Over a pool (`newton_cg`): the image of each shown server in K + 4 passes, each of which needs
    what the one before summed over the whole table: S w; the change written, and S' of the residual
    with it (read and written); each conjugate-gradient step but the last, S y and S' of its
    curvature; the last S y. Beside them the waiting queries' rows of every server's image and
    score, and what is kept of the shown servers for each row.

    With few dimensions (`running`): the queue's features, the roots, one page of each shown block
    read, one row written, and the models of the shown blocks, their pages and T read and written.

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
        kept = (4 + (servers if size > 1 else 0)) * table
        return FLOAT * (
            size * (passes * table * dim + kept) + waiting * servers * (dim + 1) + queue
        )
    second = int(np.prod(loss_model.second_shape(problem)))
    row = likelihood.row_size(problem)
    block = (
        row * (paged_history.page_size(problem) + 1)
        + 6 * loss_model.vector_size(problem)
        + 2 * second
    )
    samples = gaussian.num_samples(size) * servers * dim
    roots = (servers + size) * dim * dim
    return float(FLOAT * (slots * dim + queue + roots + samples + size * block))


def rows(quick: bool, say: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """Set rounds a second beside those of the floor, alone and in batches, on one core and on all.

    Args:
        quick: one case, to see that all works.
        say: is told what comes next.

    Yields:
        A row a case: `case`, `runs` in a batch of each core, `devices`, `rounds_a_second`,
        `floor_kb` of a round-run, `gb_a_second` of the streaming add over as many bytes as the
        batches keep, and `share_of_floor`, the floor's seconds over those measured.
    """
    for case in floor_cases(quick):
        say(f"{case.name}: {case.batch} on each of {case.num_devices}")
        (row,) = measure(case)
        problem = case.source.problem(case.assortment_size, case.horizon)
        needed = bytes_a_round(problem, _mean_queue(case), row["slots"])
        moved = MOVED // 64 if quick else MOVED
        kept = int(row["bytes_a_run"] * case.at_once)
        bandwidth = streamed(kept, len(case.devices), moved)
        speed = row["rounds_a_second"] or row["whole_rounds_a_second"]
        yield {
            "case": case.name, "runs": case.batch, "devices": len(case.devices),
            "rounds_a_second": round(speed), "floor_kb": round(needed / 1e3, 1),
            "gb_a_second": round(bandwidth / 1e9, 1),
            "share_of_floor": float(f"{needed * speed / bandwidth:.2g}"),
        }  # fmt: skip


def floor_cases(quick: bool) -> Iterator[Case]:
    """Yield what is set beside its floor: K = 1, alone on a core, on all cores, in a batch."""
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
