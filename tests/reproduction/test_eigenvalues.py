"""Smallest eigenvalues: V summed again by hand, and the studies from the command line."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest
from composing import run_command

from cqbjax import sources
from cqbjax.core import rng, simulate
from cqbjax.core.pytree import as_arrays
from cqbjax.core.queueing import QueueOverflow
from cqbjax.policies import Acqb
from cqbjax.policies._template import EpsilonGreedy
from cqbjax.testing.instances import FAST_COMPILE_OPTIONS
from reproduction.theory import quantities

HORIZON, EVERY, RATE = 60, 12, 0.45
SOURCES = {
    name: sources.Synthetic(num_servers=3, dim=2, slackness=0.0, parameters=name)
    for name in ("disjoint", "shared")
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SOURCES)
def test_measured_eigenvalues_match_design_matrices_of_served_queries(name):
    source, size = SOURCES[name], 2
    problem, policy = source.problem(size, HORIZON), as_arrays(EpsilonGreedy(epsilon=0.4))
    measured = quantities.measure_eigenvalues(
        {"eps": policy}, as_arrays(source), RATE, problem, np.array([3]), EVERY, HORIZON
    )
    key = rng.run_key(3)
    run = simulate.trace(key, policy, as_arrays(source), RATE, problem, HORIZON)
    contexts = np.asarray(
        simulate.draw_instance(key, as_arrays(source), RATE, problem).workload.contexts
    )
    sums = np.zeros((2, problem.num_blocks, 2, 2))
    for t in range(HORIZON):
        for server in np.asarray(run.servers[t]) if run.valid[t] else ():
            context = contexts[run.row[t]]
            x, block = (context, server) if name == "disjoint" else (context[server], 0)
            for part in range(1 + int(run.explored[t])):
                sums[part, block] += np.outer(x, x)
        if (t + 1) % EVERY == 0:
            one = measured.sel(policy="eps", seed=3, round=t + 1)
            least = np.linalg.eigvalsh(sums)[..., 0].min(axis=-1)
            np.testing.assert_allclose([one["all"], one["explored"]], least, atol=1e-4)
            assert int(one["count"]) == int(run.explored[: t + 1].sum())
    assert int(one["count"]) > 5 and float(one["all"]) > 0.1
    rows = contexts.reshape(-1, 2)
    second = sum(np.outer(x, x) for x in rows) / len(rows)
    expected = np.linalg.eigvalsh(second)[0] / problem.num_blocks
    assert float(measured.sigma[0]) == pytest.approx(expected, rel=1e-4)


@functools.partial(jax.jit, compiler_options=FAST_COMPILE_OPTIONS)
def ease_of_exploration(policy, seeds):
    """Return by how much queries of exploration are easier than the run's table, in its sds.

    Easy is a query whose best server has a high utility: what a policy serves first.
    """
    source = as_arrays(sources.Synthetic(num_servers=3, dim=2, slackness=0.01))
    problem = source.problem(1, 200)

    def one(seed):
        key = rng.run_key(seed)
        made, _ = simulate.run_rounds(key, policy, source, RATE, problem, 200, states=False)
        workload = simulate.draw_instance(key, source, jnp.asarray(RATE), problem).workload
        best = workload.utilities.max(axis=1)
        explored = made.explored & made.valid
        ease = (best[made.row] - best.mean()) / best.std()
        return (ease * explored).sum() / jnp.maximum(explored.sum(), 1), explored.sum()

    return jax.vmap(one)(seeds)


@pytest.mark.slow
def test_explored_arrivals_are_unbiased_and_explored_oldest_queries_are_not(as_in_a_study):
    """To five standard errors: what is explored when a query comes is as hard as what comes."""
    means = {}
    for name, words in {
        "arrivals": {},
        "oldest": {"exploration": "independent", "explore_query": "oldest"},
    }.items():
        ease, count = map(
            np.asarray, ease_of_exploration(as_arrays(Acqb(**words)), jnp.arange(100))
        )
        assert count.sum() > 1000
        means[name] = ease.mean() / (ease.std(ddof=1) / np.sqrt(len(ease)))
    assert abs(means["arrivals"]) < 5
    assert means["oldest"] < -5  # harder: the easy ones have left


@pytest.mark.slow
def test_an_overflowing_queue_is_named():
    source = SOURCES["disjoint"]
    fixed = {"eps": as_arrays(EpsilonGreedy())}, as_arrays(source), RATE, source.problem(1, HORIZON)
    with pytest.raises(QueueOverflow, match="capacity=1 overflowed in round"):
        quantities.measure_eigenvalues(*fixed, np.arange(4), EVERY, 1)


def test_eigenvalue_bound_grows_linearly_and_then_as_a_square_root():
    bound = quantities.lemma_bound(np.array([1.0, 4.0, 9.0, 900.0]), 0.4, 0.5, 3.0)
    np.testing.assert_allclose(bound, 0.4 * 0.5 * np.array([1, 4, 9, 90]) / 4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "words", "tables"),
    [("theory_switching", ["K=1", "horizon=9", "policy=[optimal,random]", "kind.block=4"],
      ["theory_switching", "theory_switching_by_switch"]),
     ("theory_eigenvalues", ["horizon=40", "record_every=null", "table_rounds=[40]"],
      ["theory_eigenvalues"])],
)  # fmt: skip
def test_proof_studies_write_their_tables(name, words, tables, tmp_path):
    done = run_command(
        "run", f"experiment={name}", "num_seeds=3", "num_servers=2", "dim=2", "arrival_rate=0.4",
        "slackness=0.01", *words, f"results_dir={tmp_path}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for table in tables:
        frame = pl.read_csv(tmp_path / "tables" / f"{table}.csv")
        assert frame.height and set(frame["seeds"]) == {3}
    if name == "theory_switching":
        rules = pl.read_csv(tmp_path / "tables" / f"{name}.csv")
        assert rules.filter(~pl.col("rule").str.contains("printed|sketch"))["failed"].sum() == 0
