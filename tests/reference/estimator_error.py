"""Measure how far the running estimates are from the exact minimiser (docs/notebook/estimator.md).

    python -m tests.reference.estimator_error --data-dir PATH

Writes `results/tables/estimator_error.{csv,md}`; cases of prompts are those whose data lie under
the folder. Whole runs of ACQB in float32; at sampled rounds the blocks that the round moved are
solved exactly in float64 by `tests.reference`, the other blocks staying where the run has them, and
the distance is taken in the norm of each block's design matrix V, as a share of its radius alpha.
Where rows couple blocks (disjoint, K > 1, few dimensions), the distance of the same blocks from the
joint minimiser over all blocks is measured too.
"""

import argparse
import functools
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl

from cqbjax import datasets
from cqbjax.cli._command import Arguments, run_plain
from cqbjax.core import backend, rng, simulate
from cqbjax.core.files import check_writable
from cqbjax.core.types import Problem, Source
from cqbjax.engine.spec import PerSeed
from cqbjax.estimation import gaussian
from cqbjax.experiments import display
from cqbjax.offline import ProjectedPolicy, fits
from cqbjax.offline.contrastive import ContrastiveConfig
from cqbjax.offline.policies import train_policies
from cqbjax.policies import Acqb, ContextWrapper, Intercept
from cqbjax.results import tables
from cqbjax.sources import Synthetic
from tests import reference
from tests.reference.scenarios import unit_vectors

ARGUMENTS = Arguments(description="Measure the estimator's distance from the exact minimiser.")
ARGUMENTS.add_argument(
    "--data-dir", type=pathlib.Path, default=pathlib.Path("data"), metavar="PATH",
    help="prepared datasets; without one its cases are left out",
)  # fmt: skip
ARGUMENTS.add_argument(
    "--results", type=pathlib.Path, default=pathlib.Path("results"), metavar="FOLDER",
    help="where to write",
)  # fmt: skip
CAPTION = "Distance from the minimiser, percent of the radius"
Judged = Acqb | ContextWrapper
DENSE = 40
MOST_JOINT = 100  # numbers of theta up to which the joint minimiser is solved for
# As in conf/experiment.
HEADS = {
    "routerbench": ContrastiveConfig(),
    "mmlu_pro": ContrastiveConfig(
        iota_pos=0.4, iota_neg=0.1, prompts_per_model=10, prompts_per_epoch=30, epochs=50
    ),
}


class Run(NamedTuple):
    """What one run served and estimated, as NumPy arrays.

    Attributes:
        problem: shapes.
        features: [I, N, d] float64 features of a server for a table row, or [I, 1, d] where every
            server has the same.
        row: [T] table row served.
        servers: [T, K] assortment.
        choice: [T] position of the chosen server, K for the outside option.
        valid: [T] whether a query was served.
        theta: [T, B, d] float64 estimates after the round.
        offset: [I, N] what of the utilities was known beforehand.
    """

    problem: Problem
    features: np.ndarray
    row: np.ndarray
    servers: np.ndarray
    choice: np.ndarray
    valid: np.ndarray
    theta: np.ndarray
    offset: np.ndarray


class Distance(NamedTuple):
    """One block's distance after one round.

    Attributes:
        round: t, from 1.
        block: server number, 0 for a shared parameter.
        distance: |theta - exact| in the norm of V.
        joint: the same from the minimiser over all blocks; null where it is not measured.
        radius: alpha of the block at alpha_scale 1.
    """

    round: int
    block: int
    distance: float
    radius: float
    joint: float | None = None


@functools.partial(jax.jit, static_argnames=("problem", "capacity"))
def _trace(
    key: jax.Array, policy: Judged, source: Source, rate: jax.Array, problem: Problem, capacity: int
) -> Any:
    """Run once and keep of each round's state the estimate alone."""
    rounds, _ = simulate.run_rounds(key, policy, source, rate, problem, capacity)
    contexts = source.draw_workload(key, rate, problem).contexts
    theta = policy.theta(rounds.state, contexts, problem)
    seen = policy.view.transform(contexts) if isinstance(policy, ContextWrapper) else contexts
    return rounds._replace(state=theta), seen


def play(
    source: Source, size: int, rate: float, horizon: int, seed: int, policy: Judged,
    capacity: int = 512,
) -> Run:  # fmt: skip
    """Run a policy once.

    Args:
        source: where queries come from.
        size: K.
        rate: arrival rate, queries a round.
        horizon: T.
        seed: of the run.
        policy: whose estimates are judged, on the contexts that it sees.
        capacity: queue slots; a full queue loses queries, which does no harm here.
    """
    problem = source.problem(size, horizon)
    rounds, contexts = jax.tree.map(
        np.asarray, _trace(rng.run_key(seed), policy, source, rate, problem, capacity)
    )
    features = contexts.astype(np.float64)
    if features.ndim == 2:
        features = features[:, None, :]
    theta = rounds.state.astype(np.float64)
    acqb = policy.policy if isinstance(policy, ContextWrapper) else policy
    offset = np.zeros((len(features), problem.num_servers))
    if acqb.offset is not None:
        offset = np.asarray(acqb.offset, np.float64)
    problem = problem._replace(dim=features.shape[-1])
    return Run(
        problem, features, rounds.row, rounds.servers, rounds.choice, rounds.valid, theta, offset
    )


def design(run: Run, until: int, block: int, lambda0: float) -> tuple[np.ndarray, int]:
    """Return V [d, d] of a block after `until` rounds, and how many rounds it learnt from."""
    served = run.valid[:until]
    row, servers = run.row[:until][served], run.servers[:until][served]
    if run.problem.parameters == "shared":
        rows = run.features[row[:, None], servers].reshape(-1, run.problem.dim)
        return lambda0 * np.eye(run.problem.dim) + rows.T @ rows, len(row)
    rows = run.features[row[(servers == block).any(axis=1)], 0]
    return lambda0 * np.eye(run.problem.dim) + rows.T @ rows, len(rows)


def minimise_exactly(run: Run, until: int, free: list[int], lambda0: float) -> np.ndarray:
    """Minimise the objective of the first `until` rounds over the free blocks, the others held.

    Returns:
        [len(free), d] in float64, to a gradient of norm 1e-11.
    """
    theta = run.theta[until - 1]
    shared = run.problem.parameters == "shared"
    selected = np.flatnonzero(run.valid[:until])
    if not shared:
        selected = selected[np.isin(run.servers[selected], free).any(axis=1)]
    servers = run.servers[selected]
    blocks = np.zeros_like(servers) if shared else servers
    features = run.features[run.row[selected][:, None], servers if shared else 0 * servers]
    chosen = (run.choice[selected][:, None] == np.arange(servers.shape[1])).astype(float)
    own = (blocks[:, :, None] == np.asarray(free)).astype(float)
    rows = (own[..., None] * features[:, :, None, :]).reshape(*blocks.shape, -1)
    held = np.sum(features * theta[blocks], axis=-1) * (1.0 - own.sum(axis=-1))
    held += run.offset[run.row[selected][:, None], servers]
    minimiser = reference.minimise(rows, held, chosen, lambda0, theta[free].ravel())
    return minimiser.reshape(len(free), -1)


def measure(run: Run, rounds: np.ndarray, lambda0: float = 1.0) -> list[Distance]:
    """Return the distance of each block that a sampled round moved.

    Args:
        run: the run.
        rounds: which rounds to look at, from 1; those with an empty queue are left out.
        lambda0: the run's regularisation.
    """
    distances = []
    for t in rounds[run.valid[rounds - 1]].tolist():
        shared = run.problem.parameters == "shared"
        free = [0] if shared else sorted(run.servers[t - 1].tolist())
        best = minimise_exactly(run, t, free, lambda0)
        coupled = not shared and len(free) > 1 and run.theta[0].size <= MOST_JOINT
        joint = (
            minimise_exactly(run, t, list(range(len(run.theta[0]))), lambda0) if coupled else None
        )
        for solution, block in zip(best, free, strict=True):
            matrix, count = design(run, t, block, lambda0)
            delta = run.theta[t - 1, block] - solution
            far = None if joint is None else run.theta[t - 1, block] - joint[block]
            distances.append(Distance(
                t, block, float(np.sqrt(delta @ matrix @ delta)),
                radius(run.problem, count, lambda0),
                None if far is None else float(np.sqrt(far @ matrix @ far)),
            ))  # fmt: skip
    return distances


def radius(problem: Problem, count: int, lambda0: float) -> float:
    """Return alpha with kappa = 1 and alpha_scale = 1."""
    return float(gaussian.radius(problem, jnp.asarray(count, float), 1.0, lambda0, 1.0))


def sample_rounds(horizon: int, dense: int, every: int) -> np.ndarray:
    """Return the rounds to look at: all of the first `dense`, then one in `every`."""
    rounds = np.arange(1, horizon + 1)
    return rounds[(rounds <= dense) | (rounds % every == 0)]


def percent(distances: list[Distance], scale: float) -> np.ndarray:
    """Return the distances in percent of alpha at an alpha_scale."""
    return np.array([100.0 * one.distance / (scale * one.radius) for one in distances])


class Case(NamedTuple):
    """One setting to measure.

    Attributes:
        source: where queries come from.
        size: K.
        rate: arrival rate, queries a round.
        horizon: T.
        seeds: runs, from seed 0.
        every: each of the first `DENSE` rounds is looked at, then one in so many.
        scale: alpha_scale of the runs, and of the radius that the distance is compared with.
        sweeps: of the runs.
        shown: makes, of ACQB and a seed, the policy that sees other contexts; None: the source's.
    """

    source: Source
    size: int
    rate: float
    horizon: int
    seeds: int = 1
    every: int = 10
    scale: float = 0.2
    sweeps: int = 0
    shown: Callable[[Acqb, int], Judged] | None = None


@functools.cache
def cases(folder: pathlib.Path) -> dict[str, Case]:
    """Return name -> case; prompts run with the preset's scale."""
    # Every round: the worst come right after a choice that was thought unlikely, which is rare.
    named = {
        f"d=5 N=5 K={k} disjoint": Case(Synthetic(), k, 0.7, 1000, 4, every=1) for k in (1, 2, 3)
    }
    named |= {
        f"d=5 N=5 K={k} disjoint, one sweep": Case(Synthetic(), k, 0.7, 1000, 4, every=1, sweeps=1)
        for k in (2, 3)
    }
    shared = Synthetic(parameters="shared")
    named |= {f"d=5 N=5 K={k} shared": Case(shared, k, 0.7, 1000, 4, every=1) for k in (1, 2)}
    for rounds, every in ((10_000, 250), (100_000, 2500)):
        for k in (1, 2):
            name = f"d=5 N=5 K={k} disjoint, {rounds:,} rounds"
            named[name] = Case(Synthetic(), k, 0.7, rounds, every=every)
    named["d=20 N=5 K=1 disjoint"] = Case(Synthetic(dim=20), 1, 0.7, 400)
    named["d=15 N=5 K=2 disjoint"] = Case(Synthetic(dim=15), 2, 0.7, 400)
    named["d=384 N=11 K=1 random unit vectors"] = Case(unit_vectors(11), 1, 0.6, 400)
    prompts = {
        "d=384 N=11 K=1 RouterBench slice": ("routerbench", 1, 0.65),
        "d=384 N=11 K=2 RouterBench slice": ("routerbench", 2, 0.9),
        "d=384 N=28 K=1 MMLU-Pro": ("mmlu_pro", 1, 0.47),
        "d=384 N=28 K=2 MMLU-Pro": ("mmlu_pro", 2, 0.7),
    }
    for name, (dataset, k, rate) in prompts.items():
        if (folder / dataset).is_dir():
            source = datasets.dataset_source(dataset, folder)
            case = Case(source.queries, k, rate, 2000, every=50, scale=0.3)
            named[name] = case
            named[f"{name}, intercept"] = case._replace(shown=_add_intercept)
            named[f"{name}, head"] = case._replace(
                shown=functools.partial(_apply_head, source, dataset)
            )
    return named


def _add_intercept(policy: Acqb, seed: int) -> Judged:
    """Show a policy its contexts with a constant coordinate."""
    del seed
    return ContextWrapper(policy=policy, view=Intercept())


def _apply_head(source: datasets.DatasetSource, dataset: str, policy: Acqb, seed: int) -> Judged:
    """Show a policy what the head of a seed makes of its contexts, trained or kept."""
    learnt = {"acqb_cl": ProjectedPolicy(policy, HEADS[dataset])}
    ready = train_policies(learnt, source, [seed], fits.cache_folder(None), None)["acqb_cl"]
    assert isinstance(ready, PerSeed)
    judged = ready.policies[0]
    assert isinstance(judged, ContextWrapper)
    return judged


def policy_of(case: Case) -> Acqb:
    """Return the policy of a case's runs, before it is shown other contexts."""
    return Acqb(alpha_scale=case.scale, c1=0.25, sweeps=case.sweeps)


def distances_of(case: Case, seed: int) -> list[Distance]:
    """Return the distances of one run of a case, at the rounds that are looked at."""
    policy = policy_of(case)
    run = play(
        case.source, case.size, case.rate, case.horizon, seed,
        case.shown(policy, seed) if case.shown else policy,
    )  # fmt: skip
    return measure(run, sample_rounds(case.horizon, DENSE, case.every))


def table(named: Mapping[str, Case]) -> pl.DataFrame:
    """Return the worst and the mean distance of each case, in percent of the radius."""
    rows = []
    for name, case in named.items():
        runs = [distances_of(case, seed) for seed in range(case.seeds)]
        shares = np.concatenate([percent(run, case.scale) for run in runs])
        joint = np.array([
            100 * one.joint / (case.scale * one.radius)
            for run in runs for one in run if one.joint is not None
        ])  # fmt: skip
        rows.append({
            "case": name, "rounds": case.horizon, "seeds": case.seeds, "every": case.every,
            "alpha_scale": case.scale, "max_percent": shares.max(), "mean_percent": shares.mean(),
            "joint_max_percent": joint.max() if joint.size else None,
            "joint_mean_percent": joint.mean() if joint.size else None,
        })  # fmt: skip
    return pl.DataFrame(rows)


def write(asked: argparse.Namespace) -> None:
    """Measure every case whose data are there, write the table and print it."""
    check_writable(asked.results / "tables", "--results")
    backend.configure()
    made = table(cases(asked.data_dir))
    written = tables.save_table(made, asked.results / "tables" / "estimator_error", CAPTION)
    console = display.make_console()
    tables.print_table(made, CAPTION, console)
    console.print(", ".join(map(str, written)), markup=False, soft_wrap=True)


def main() -> None:
    """Measure the cases whose data lie in the folder that the command line names."""
    run_plain(write, ARGUMENTS)


if __name__ == "__main__":
    main()
