"""The cases of the benchmark: all of them, or few and short ones (`quick`)."""

import dataclasses
from typing import Any

import jax

from benchmarks.measure import Case
from cqbjax.core.labels import OPTIMAL
from cqbjax.core.types import Policy, Source
from cqbjax.engine import memory
from cqbjax.policies import Acqb, OptimalPolicy, QueueingBandit, RandomRouting
from cqbjax.sources import PromptPool, Synthetic
from tests.reference.scenarios import unit_vectors

ACQB = Acqb(alpha_scale=0.2, c1=0.25)
BASELINES: dict[str, Policy] = {
    "cqb_eps": dataclasses.replace(ACQB, exploration="phased", explore_rounds=100.0),
    "acqb_ucb": dataclasses.replace(ACQB, optimism="ucb"),
    "acqb_fifo": dataclasses.replace(ACQB, schedule="oldest"),
    "q_ucb": QueueingBandit(index="ucb"), "q_ths": QueueingBandit(index="thompson"),
    "random": RandomRouting(schedule="random"), "rand_rout": RandomRouting(schedule="oldest"),
    OPTIMAL: OptimalPolicy(),
}  # fmt: skip
# Their queues grow at the benchmark's rate: they get enough slots at once.
CROWDED = ("q_ucb", "q_ths", "random", "rand_rout")
CROWDED_SLOTS = 512
# Widest batches of a CPU, by bytes a run: wider batches take minutes and are no faster.
CPU_WIDEST = ((10_000_000, 16), (100_000_000, 2))
CPU_WIDEST_SMALL = 1024


def acqb(name: str, source: Source, **fields: Any) -> Case:
    """Return a case of ACQB alone."""
    return Case(name, {"acqb": ACQB}, source, **fields)


def problems(quick: bool) -> dict[str, Case]:
    """Return name -> case of ACQB, with one run in a batch."""
    small, wide = (200, 40) if quick else (1000, 1000)
    shapes = [(5, 1), (5, 2), (14, 1), (14, 2), (112, 1)]
    cases = {}
    for servers, size in [shape for shape in shapes if not quick or shape in ((5, 1), (14, 1))]:
        dim, source = (5, Synthetic()) if servers == 5 else (384, unit_vectors(servers))
        name, horizon = f"d={dim} N={servers} K={size}", small if dim == 5 else wide
        cases[name] = acqb(name, source, assortment_size=size, horizon=horizon, batch=1)
    return cases


def widths(case: Case, quick: bool) -> list[int]:
    """Return the batches to try: powers of 4 from 1 to the largest that fits the memory.

    On a CPU the largest is smaller, where a batch far exceeds its caches.
    """
    device, run_bytes = jax.devices()[0], case.bytes_a_run(next(iter(case.policies)))
    fitting = memory.device_budget(None, [device]) // run_bytes
    if device.platform == "cpu":
        bound = CPU_WIDEST_SMALL if case.assortment_size == 1 else CPU_WIDEST_SMALL // 4
        large = [widest for size, widest in CPU_WIDEST if run_bytes > size / 2]
        fitting = min([fitting, bound, *large])
    else:
        fitting = min(fitting, memory.GPU_WIDTH)
    # Pairs compile slowly: some widths show how they grow.
    powers = range(9) if case.assortment_size == 1 else (0, 1, 3, 4)
    batches = [4**power for power in powers if 4**power <= max(1, fitting)]
    if not quick:
        return batches
    return [min(64, batches[-1])] if run_bytes < 1_000_000 else [1]


def throughput(quick: bool) -> list[Case]:
    """Return ACQB at every batch width, then the baselines at one."""
    cases = []
    for case in problems(quick).values():
        for width in widths(case, quick):
            few = width >= 256 or isinstance(case.source, PromptPool)
            cases.append(dataclasses.replace(case, batch=width, chunks=2 if few else 3))
    horizon, batch = (200, 64) if quick else (1000, 256)
    labels = ("q_ucb", OPTIMAL) if quick else tuple(BASELINES)
    for crowded in (False, True):
        chosen = {label: BASELINES[label] for label in labels if (label in CROWDED) == crowded}
        case = Case("d=5 N=5 K=1", chosen, Synthetic(), horizon=horizon, batch=batch)
        cases.append(dataclasses.replace(case, capacity=CROWDED_SLOTS) if crowded else case)
    return cases
