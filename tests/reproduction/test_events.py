"""The events of the proofs, looked at again by hand, and the study from the command line."""

import numpy as np
import polars as pl
import pytest
from composing import refusal_of, run_command

from cqbjax import sources
from cqbjax.core import rng, simulate
from cqbjax.core.pytree import as_arrays
from cqbjax.policies import Acqb
from reproduction.theory import quantities

pytestmark = pytest.mark.slow

HORIZON, RATE = 50, 0.4
SOURCE = sources.Synthetic(num_servers=3, dim=2, slackness=0.0, parameters="shared")


def rate_of(utilities, servers):
    weight = np.exp(utilities[list(servers)]).sum()
    return weight / (1 + weight)


def best(utilities, size):
    servers = np.argsort(-utilities)[:size]
    return rate_of(utilities, servers), servers


@pytest.mark.parametrize("size, kappa", [(1, 0.4), (2, 4.0)])
def test_measured_events_match_a_plain_computation(size, kappa):
    policy = as_arrays(Acqb(kappa=kappa))
    problem = SOURCE.problem(size, HORIZON)
    made = quantities.measure_events(
        {"acqb": policy}, as_arrays(SOURCE), RATE, problem, np.array([3]), HORIZON
    ).sel(policy="acqb", seed=3)  # fmt: skip
    key = rng.run_key(3)
    run = simulate.trace(key, policy, as_arrays(SOURCE), RATE, problem, HORIZON)
    instance = simulate.draw_instance(key, as_arrays(SOURCE), RATE, problem)
    contexts = np.asarray(instance.workload.contexts, float)
    utilities = np.asarray(instance.workload.utilities, float)
    truth = np.linalg.lstsq(contexts.reshape(-1, 2), utilities.ravel(), rcond=None)[0]
    thetas = np.asarray(policy.theta(run.state, contexts, problem), float)[:, 0]
    theta, count, gram, waiting = np.zeros(2), 0, np.eye(2), []
    seen = 0
    for t in range(1, HORIZON + 1):
        now = made.sel(round=t)
        assert bool(np.isnan(now["loss"])) == (not waiting)
        if waiting:
            seen += 1
            grown = 2 * np.log1p(count * size / 2) + 4 * np.log(max(count, 1))
            alpha = kappa * (np.sqrt(grown) / 2 + 1)
            normal = np.asarray(policy.draws(rng.round_key(key, t), problem).normal, float)[:, 0]
            samples, root = len(normal), np.linalg.cholesky(np.linalg.inv(gram))
            past = np.sqrt(2 * np.log(2 * samples)) + np.sqrt(6 * np.log(size * t * HORIZON))
            beta = alpha * min(np.sqrt(12 * np.log(samples * HORIZON)), past)
            assert bool(now["covered"]) == ((theta - truth) @ gram @ (theta - truth) <= alpha**2)
            least = np.linalg.eigvalsh(gram)[0]
            assert float(now["bound"]) == pytest.approx((alpha + 48 * beta) / least**0.5, rel=1e-3)
            # W is one of many roots of V^-1: the simulator's own, not Cholesky's.
            if t > 1:
                stored = np.asarray(run.state.belief.posterior.root[t - 2, 0], float)
                np.testing.assert_allclose(stored.T @ stored, root @ root.T, atol=1e-4)
                drawn = theta + alpha * normal @ stored
            rows = [row for row, _ in waiting]
            sampled = np.stack([(contexts[row] @ drawn.T).max(axis=1) for row in rows])
            pairs = [best(one, size) for one in sampled]
            which = int(np.argmax([value for value, _ in pairs]))
            most = max(best(utilities[row], size)[0] for row in rows)
            gained = rate_of(utilities[rows[which]], pairs[which][1])
            assert float(now["loss"]) == pytest.approx(most - gained, abs=2e-4)
            assert float(now["drift"]) == pytest.approx(RATE - gained, abs=2e-4)
            assert bool(now["optimistic"]) == (pairs[which][0] > most)
            wide = np.sqrt(
                np.einsum("rni,ij,rnj->rn", contexts[rows], root @ root.T, contexts[rows])
            )
            excess = sampled - contexts[rows] @ theta - beta * wide
            assert bool(now["near"]) == bool((excess <= 1e-4).all())
        if run.valid[t - 1]:
            shown = contexts[run.row[t - 1]][np.asarray(run.servers[t - 1])]
            gram, count = gram + shown.T @ shown, count + 1
            if run.choice[t - 1] < size:
                waiting = [one for one in waiting if one[1] != run.query[t - 1]]
        theta = thetas[t - 1]
        if instance.arrivals[t - 1]:
            waiting.append((int(instance.workload.arrival_rows[t - 1]), t))
    assert seen > 15 and (kappa > 1 or not bool(made["covered"].min()))


def test_events_study_runs_from_the_command_line(tmp_path):
    done = run_command(
        "run", "experiment=theory_events", f"results_dir={tmp_path}", "num_seeds=2", "horizon=40",
        "K=1", "kappa=4", "table_rounds=[10,40]",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    table = pl.read_csv(tmp_path / "tables/theory_events.csv")
    assert table["last"].to_list() == [10, 40] and table["first"].to_list() == [1, 11]
    assert table["covered"].is_between(0, 1).all() and (table["root"] >= table["loss"]).all()


def test_events_study_rejects_undefined_settings():
    message = refusal_of(["experiment=theory_events", "parameters=disjoint", "dry_run=true"])
    assert "parameters=disjoint must be shared" in message
    message = refusal_of(["experiment=theory_events", "policy=[acqb_ucb]", "dry_run=true"])
    assert "policy acqb_ucb draws no samples" in message
