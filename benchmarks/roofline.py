"""The roofline of a machine, a lower bound on a round's time.

Bytes are counted as if each number that a round needs were moved once for each pass of the
algorithm, whatever XLA compiles; caches are ignored.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from benchmarks import cases
from benchmarks.measure import Case, measure, time_calls
from cqbjax.core.types import Problem
from cqbjax.engine.sweep import sweep
from cqbjax.estimation import gaussian, likelihood, loss_model, newton_cg
from cqbjax.estimation import paged_history as history
from cqbjax.sources import Synthetic
from tests.reference.scenarios import unit_vectors

FLOAT = 4  # bytes
# Bytes that one measurement moves; smallest and largest array that it streams repeatedly.
MOVED, SMALLEST, LARGEST = 2**30, 2**16, 2**28
TRIES = 5
SERVERS = (3, 14, 112)
HORIZON = {5: 2000, 384: 400}


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
        seconds = time_calls(lambda: list(pool.map(add, arrays)), 1 + TRIES)
    return 2 * share * cores * turns / min(seconds[1:])


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
    rows_of_page = likelihood.row_size(problem) * (history.page_size(problem) + 1)
    block = rows_of_page + 6 * loss_model.vector_size(problem) + 2 * second
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
