"""ACQB from logs: the prior by hand, ACQB's estimate with it, and labels of routers."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

from cqbjax import datasets
from cqbjax.core import rng, simulate
from cqbjax.core.types import Observation
from cqbjax.offline import TrainedRouter, WarmStart, priors
from cqbjax.offline.routers import KNN, Logistic
from cqbjax.offline.routers.logistic import fit_log_odds
from cqbjax.policies import Acqb, ContextWrapper, ReplacedContexts
from tests.reference import estimator_error, scenarios

LAMBDA0, WEIGHT, RIDGE = 0.7, 0.2, 0.5


def logs(seed=0, n=50, e=4, servers=3, rows=9):
    """Return offline contexts and departures, and a pool."""
    draw = np.random.default_rng(seed)
    offline, pool = draw.normal(size=(n, e)) / 2, draw.normal(size=(rows, e)) / 2
    theta = draw.normal(size=(servers, e))
    return offline, 1 / (1 + np.exp(-offline @ theta.T)), pool


def test_departure_fits_match_scipy():
    features, departure, _ = logs()

    def loss(theta):
        odds = features @ theta
        return np.sum(np.logaddexp(0, odds) - departure[:, 1] * odds) + RIDGE / 2 * theta @ theta

    best = scipy.optimize.minimize(loss, np.zeros(4), tol=1e-10).x
    theta, constant = fit_log_odds(features, departure, RIDGE, intercept=False)
    np.testing.assert_allclose(theta[1], best, atol=2e-3)
    assert (constant == 0).all()


def test_an_intercept_is_not_shrunk():
    features, _, _ = logs(n=400)
    departure = np.full((400, 2), 0.9)
    theta, constant = fit_log_odds(features, departure, 50.0, intercept=True)
    np.testing.assert_allclose(constant, np.log(9.0), atol=1e-2)
    np.testing.assert_allclose(theta, 0, atol=1e-2)


def test_prior_is_theta_0_and_a_root_of_v_0():
    offline, departure, pool = logs()
    prior = priors.fit_prior(offline, departure, pool, WEIGHT, RIDGE, LAMBDA0)
    theta, _ = fit_log_odds(offline, departure, RIDGE, intercept=False)
    np.testing.assert_allclose(prior.offset, pool @ theta.T, rtol=1e-9)
    design = LAMBDA0 * np.eye(4) + WEIGHT * offline.T @ offline
    spread = pool @ np.linalg.solve(design, pool.T)
    np.testing.assert_allclose(prior.contexts @ prior.contexts.T / LAMBDA0, spread, rtol=1e-9)


def test_zero_weight_logs_leave_v_0_unchanged():
    offline, departure, pool = logs()
    prior = priors.fit_prior(offline, departure, pool, 0.0, RIDGE, LAMBDA0)
    np.testing.assert_allclose(prior.contexts, pool, rtol=1e-9)


def pool_of(pool):
    """Return a routing source on these contexts, every prompt in every run's pool."""
    draw = np.random.default_rng(8)
    return scenarios.routing(pool @ draw.normal(size=(pool.shape[1], 3)) + 0.3, pool)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2])
def test_the_estimate_with_a_prior_is_the_minimiser_of_the_loss_about_theta_0(size, x64):
    """In the original coordinates: sum of losses + 1/2 (theta - theta_0)' V_0 (theta - theta_0)."""
    offline, departure, contexts = logs(rows=12)
    source = pool_of(contexts)
    problem = source.problem(size, 60)
    key = rng.run_key(3)
    pool = np.asarray(source.pool(key))
    prior = priors.fit_prior(offline, departure, contexts[pool], WEIGHT, RIDGE, LAMBDA0)
    acqb = Acqb(
        lambda0=LAMBDA0, alpha_scale=0.4, c1=0.5, estimator="newton_cg", exact_steps=12,
        offset=jnp.asarray(prior.offset),
    )  # fmt: skip
    policy = ContextWrapper(
        policy=acqb, view=ReplacedContexts(contexts=jnp.asarray(prior.contexts))
    )
    rounds = simulate.trace(key, policy, source, 0.6, problem, 60)
    seen = jax.tree.map(np.asarray, rounds._replace(state=None))
    scores = np.asarray(rounds.state.belief.scores[-1])  # [N, I]
    theta_0, _ = fit_log_odds(offline, departure, RIDGE, intercept=False)
    design = LAMBDA0 * np.eye(4) + WEIGHT * offline.T @ offline
    served = np.flatnonzero(seen.valid)
    last = sorted(seen.servers[served[-1]].tolist())
    x = contexts[pool]

    def utilities(theta):
        moved = scores.T.copy()
        moved[:, last] = x @ theta.reshape(len(last), -1).T
        return moved

    def loss(theta):
        values = utilities(theta)[seen.row[served][:, None], seen.servers[served]]
        total = np.log1p(np.exp(values).sum(axis=1))
        chosen = seen.choice[served] < size
        picked = np.take_along_axis(
            values, np.minimum(seen.choice[served], size - 1)[:, None], axis=1
        )[:, 0]
        distinct = theta.reshape(len(last), -1) - theta_0[last]
        return np.sum(total - chosen * picked) + 0.5 * np.sum(distinct @ design * distinct)

    best = scipy.optimize.minimize(loss, theta_0[last].ravel(), tol=1e-12).x
    np.testing.assert_allclose(
        scores[last], (x @ best.reshape(len(last), -1).T).T, atol=2e-5, rtol=0
    )
    assert np.abs(scores[last] - prior.offset.T[last]).max() > 0.05, "nothing was learnt"


@pytest.mark.slow
def test_first_thompson_samples_are_draws_from_the_prior():
    offline, departure, contexts = logs(rows=6)
    source = pool_of(contexts)
    problem = source.problem(1, 8)
    prior = priors.fit_prior(offline, departure, contexts, WEIGHT, RIDGE, LAMBDA0)
    shown = jnp.asarray(prior.contexts)
    acqb = Acqb(estimator="newton_cg", lambda0=LAMBDA0, offset=jnp.asarray(prior.offset))
    belief = acqb.belief(problem)
    state = belief.init(shown, jnp.asarray(LAMBDA0), acqb.offset)
    queue = simulate.start(
        acqb,
        problem,
        jax.tree.map(lambda leaf: leaf[0], scenarios.draw_instances(source, 0.5, problem, [0])),
        6,
    ).queue
    queue = queue._replace(row=jnp.arange(6), arrived=jnp.ones(6, jnp.int32))
    observation = Observation(
        problem, jnp.int32(1), queue, shown, jnp.bool_(True), jnp.int32(0), queue.row, None
    )
    draws = jax.random.normal(jax.random.key(0), (4000, 1, 3, 4))
    alpha = jnp.full(3, 0.5)
    drawn = np.asarray(
        jax.vmap(lambda z: belief.optimistic_utilities(state, observation, alpha, z))(draws)
    )
    np.testing.assert_allclose(drawn.mean(axis=0), prior.offset, atol=0.05)
    design = LAMBDA0 * np.eye(4) + WEIGHT * offline.T @ offline
    sd = 0.5 * np.sqrt(np.einsum("ie,ef,if->i", contexts, np.linalg.inv(design), contexts))
    np.testing.assert_allclose(drawn.std(axis=0), np.tile(sd[:, None], 3), rtol=0.06)


@pytest.mark.slow
@pytest.mark.parametrize(("size", "rate"), [(1, 0.8), (2, 0.9)])
def test_the_estimate_stays_within_two_percent_of_alpha_with_a_prior(shared_data, size, rate):
    source = datasets.dataset_source("routerbench", shared_data)
    policy = WarmStart(base=Acqb(alpha_scale=0.3, c1=0.25, retry="posterior"))
    parts = source.split(0)
    features = priors.extend(source.embeddings, policy.share)
    prior = priors.fit_prior(
        features[parts.offline], source.probabilities[parts.offline], features[parts.pool],
        policy.weight, policy.ridge, 1.0,
    )  # fmt: skip
    run = estimator_error.play(source.queries, size, rate, 200, 0, policy.make_policy(*prior))
    distances = estimator_error.measure(run, np.arange(20, 201, 20))
    assert estimator_error.percent(distances, 0.3).max() < 2.0


def test_bad_settings_of_a_warm_start_are_refused_in_a_sentence():
    problem = pool_of(logs()[2]).problem(1, 8)
    for changed, calls in (
        ({"weight": -1.0}, r"weight=-1 must be a number in \[0, inf\)"),
        ({"ridge": 0.0}, r"ridge=0 must be a number in \(0, inf\)"),
        ({"share": 1.0}, r"share=1 must be a number in \[0, 1\)"),
        ({"weight": "much"}, "weight=much must be a number in"),
    ):
        with pytest.raises(ValueError, match=calls):
            WarmStart(base=Acqb(), **changed).check(problem)
    with pytest.raises(ValueError, match="disjoint"):
        WarmStart(base=Acqb()).check(problem._replace(parameters="shared"))


def test_posterior_and_recall_need_log_odds():
    problem = pool_of(logs()[2]).problem(1, 8)
    for retry in ("posterior", "recall"):
        TrainedRouter(Logistic(), retry=retry).check(problem)
        with pytest.raises(ValueError, match=f"retry={retry} needs a router that predicts the log"):
            TrainedRouter(KNN(), retry=retry).check(problem)


def test_prior_is_fitted_on_the_offline_split_and_evaluated_on_the_pool(monkeypatch):
    """Of each seed's own: no prompt of the pool is learnt from."""
    embeddings = np.arange(12.0)[:, None]
    parts = {3: ([1, 4], [0, 2, 9]), 5: ([7], [8, 11])}
    source = SimpleNamespace(
        probabilities=100 + embeddings, embeddings=embeddings,
        split=lambda seed: SimpleNamespace(
            pool=np.array(parts[seed][0]), offline=np.array(parts[seed][1])
        ),
    )  # fmt: skip
    data = SimpleNamespace(
        source=source,
        fit_or_load=lambda kind, label, settings, fit: {seed: fit(seed)[0] for seed in settings},
    )
    calls = []

    def fit(offline, departure, pool, weight, ridge, lambda0):
        calls.append((offline.ravel().tolist(), departure.ravel().tolist(), pool.ravel().tolist()))
        assert (weight, ridge, lambda0) == (0.1, 0.2, 0.3)
        return priors.Prior(pool, 10 * pool)

    monkeypatch.setattr(priors, "fit_prior", fit)
    made = priors.fit_priors("warm", data, [5, 3], 0.1, 0.2, 0.3, 0.0, None)
    assert calls == [([8, 11], [108, 111], [7]), ([0, 2, 9], [100, 102, 109], [1, 4])]
    contexts = {seed: one["contexts"].ravel().tolist() for seed, one in made.items()}
    assert contexts == {5: [7], 3: [1, 4]}
    # With a head, the features of each seed are those of its head.
    monkeypatch.setattr(
        priors, "project_rows",
        lambda head, data, rows, label: {seed: 1000 * seed + embeddings for seed in rows},
    )  # fmt: skip
    calls.clear()
    priors.fit_priors("warm", data, [5, 3], 0.1, 0.2, 0.3, 0.0, "head")
    assert [offline for offline, _, _ in calls] == [[5008, 5011], [3000, 3002, 3009]]
