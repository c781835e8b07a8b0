"""Estimates against the exact minimiser, over whole float32 runs, and the linear algebra below."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params
from scipy import optimize

from cqbjax import datasets, estimation
from cqbjax.estimation import gaussian, likelihood, loss_model, newton_cg, running_estimate
from cqbjax.estimation.belief import Interaction
from cqbjax.policies import Acqb, ContextWrapper, Intercept
from cqbjax.sources import Synthetic
from tests import reference
from tests.reference import estimator_error as study

# Percent of alpha: the bound that the estimator is held to.
LIMIT = 2.0


def worst_error(source, size, rate, horizon, scale=0.2, seed=0):
    run = study.play(source, size, rate, horizon, seed, Acqb(alpha_scale=scale, c1=0.25))
    distances = study.measure(run, study.sample_rounds(horizon, 30, 12))
    assert len(distances) > 20
    return study.percent(distances, scale).max()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parameters", "size"),
    [("disjoint", 1), ("disjoint", 3), ("shared", 2)],
)
def test_running_estimate_is_within_2_percent_of_alpha(parameters, size):
    assert worst_error(Synthetic(parameters=parameters), size, 0.7, 400) < LIMIT


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
def test_one_sweep_keeps_the_estimate_within_two_percent_of_the_joint_minimiser(size):
    """Algorithm 2's estimate is not the joint minimiser; a joint Newton step a round reaches it."""

    def largest_distance(sweeps):
        policy = Acqb(alpha_scale=0.2, c1=0.25, sweeps=sweeps)
        run = study.play(Synthetic(), size, 0.7, 200, 0, policy)
        distances = study.measure(run, study.sample_rounds(200, 20, 10))
        return max(100 * one.joint / (0.2 * one.radius) for one in distances)

    assert largest_distance(0) > 5 * LIMIT and largest_distance(1) < LIMIT


def test_sweeps_are_refused_where_no_model_of_the_history_is_stored():
    problem = Synthetic(dim=40).problem(1, 10)
    with pytest.raises(ValueError, match="sweeps=1 needs estimator=running"):
        Acqb(sweeps=1).check(problem)
    with pytest.raises(ValueError, match="sweeps=-1 must be a whole number, at least 0"):
        Acqb(sweeps=-1).check(Synthetic().problem(1, 10))


@pytest.mark.slow
def test_running_estimate_without_page_refreshes_exceeds_the_tolerance(monkeypatch):
    expand = running_estimate._expand

    def expand_stale(theta, problem, rows, blocks):
        return expand(theta if rows.shape[-1] == 1 else 0.0 * theta, problem, rows, blocks)

    monkeypatch.setattr(running_estimate, "_expand", expand_stale)
    jax.clear_caches()
    try:
        assert worst_error(Synthetic(), 2, 0.7, 200) > LIMIT
    finally:
        jax.clear_caches()


def operations(size, horizon, parameters):
    """Return every primitive of one default update with the shapes that it computes."""
    problem = Synthetic(parameters=parameters).problem(size, horizon)
    state = running_estimate.init(problem, jnp.float32(1.0))
    shared = parameters == "shared"
    new = Interaction(
        jnp.int32(1), jnp.int32(0), jnp.zeros((size, 5) if shared else 5),
        jnp.arange(size, dtype=jnp.int32), jnp.int32(0), jnp.bool_(True),
    )  # fmt: skip
    run = jax.make_jaxpr(lambda state, new: running_estimate.update(state, problem, new))
    jaxpr = run(state, new).jaxpr
    return list(equations(jaxpr))


def equations(jaxpr):
    """Yield the primitives and shapes of a jaxpr and of those inside it."""
    for one in jaxpr.eqns:
        yield one.primitive.name, tuple(v.aval.shape for v in one.outvars)
        for inner in jaxprs_in_params(one.params):
            yield from equations(inner)


@pytest.mark.slow
@pytest.mark.parametrize(("parameters", "size"), [("disjoint", 1), ("disjoint", 2), ("shared", 2)])
def test_cost_of_a_round_does_not_depend_on_the_horizon(parameters, size):
    short, long = (operations(size, horizon, parameters) for horizon in (640, 64_000))
    names = {name for name, _ in short}
    assert not names & {"while", "scan", "cond"}
    # All that may be as long as the history are the arrays that a row or a page is written into; a
    # barrier about them costs nothing (bench/test_bench.py looks for copies).
    grows = {one for (one, few), (_, many) in zip(short, long, strict=True) if few != many}
    assert grows <= {"scatter", "scatter-add", "optimization_barrier"}, grows


@pytest.mark.slow
@pytest.mark.parametrize(("size", "rate"), [(1, 0.8), (2, 0.9)])
def test_newton_cg_stays_within_two_percent_of_alpha_on_real_embeddings(shared_data, size, rate):
    source = datasets.dataset_source("routerbench", shared_data).queries
    run = study.play(source, size, rate, 200, 0, Acqb(alpha_scale=0.3, c1=0.25))
    distances = study.measure(run, np.arange(20, 201, 20))
    assert study.percent(distances, 0.3).max() < LIMIT


@pytest.mark.slow
def test_newton_cg_stays_within_two_percent_of_alpha_on_views_of_contexts(shared_data, monkeypatch):
    source = datasets.dataset_source("routerbench", shared_data).queries
    policy = ContextWrapper(policy=Acqb(alpha_scale=0.3, c1=0.25), view=Intercept())

    def largest_distance():
        run = study.play(source, 1, 0.65, 150, 1, policy)
        return study.percent(study.measure(run, np.array([45, 75, 130, 145])), 0.3).max()

    assert largest_distance() < LIMIT / 2
    monkeypatch.setattr(newton_cg, "VIEWED_STEPS", newton_cg.POOL_STEPS)
    jax.clear_caches()
    try:
        assert largest_distance() > LIMIT
    finally:
        jax.clear_caches()


@pytest.mark.slow
@pytest.mark.parametrize(("dim", "servers", "size"), [(50, 5, 1), (5, 10, 3)])
def test_newton_cg_stays_within_two_percent_of_alpha_on_long_contexts(dim, servers, size):
    source = Synthetic(num_servers=servers, dim=dim, slackness=0.05)
    assert isinstance(
        estimation.choose_belief("auto", source.problem(size, 200)), estimation.TableBelief
    )
    assert worst_error(source, size, 0.6, 200) < LIMIT


@pytest.mark.slow
@pytest.mark.parametrize("dim", [5, 20])
def test_quick_compilation_in_tests_does_not_change_results(dim, request):
    """The other tests' machine code is not a study's; both estimators decide and learn alike."""

    def play():
        source = Synthetic(dim=dim, slackness=0.05)
        return study.play(source, 1, 0.6, 100, 0, Acqb(alpha_scale=0.2, c1=0.25))

    quick = play()
    request.getfixturevalue("as_in_a_study")
    well = play()
    for name in ("row", "servers", "choice", "valid"):
        np.testing.assert_array_equal(getattr(quick, name), getattr(well, name), err_msg=name)
    np.testing.assert_allclose(quick.theta, well.theta, atol=1e-4)
    assert quick.valid.sum() > 50 and np.abs(quick.theta[-1]).max() > 0.1


def test_exact_minimiser_matches_scipy():
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(60, 2, 4)) / 2
    chosen = np.eye(3)[rng.integers(0, 3, 60)][:, :2]

    def loss(theta):
        utilities = rows @ theta
        total = np.log1p(np.exp(utilities).sum(axis=1))
        return 0.35 * theta @ theta + np.sum(total - (chosen * utilities).sum(axis=1))

    best = optimize.minimize(loss, np.zeros(4), method="BFGS", options={"gtol": 1e-9}).x
    ours = reference.minimise(rows, np.zeros((60, 2)), chosen, 0.7, np.zeros(4))
    np.testing.assert_allclose(ours, best, atol=1e-6)


@pytest.mark.slow
def test_block_inverses_match_numpy():
    rng = np.random.default_rng(0)
    for dim in (5, 10, 40):
        factor = rng.normal(size=(dim, dim))
        matrix = factor @ factor.T + 0.5 * np.eye(dim)
        inverse = np.asarray(running_estimate.invert(jnp.asarray(matrix)))
        np.testing.assert_allclose(inverse @ matrix, np.eye(dim), atol=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parameters", "size"), [("disjoint", 1), ("disjoint", 2), ("disjoint", 3), ("shared", 2)]
)
def test_page_models_match_derivatives_of_the_gradient(parameters, size, x64):
    problem = Synthetic(parameters=parameters, dim=3, num_servers=4).problem(size, 100)
    rng = np.random.default_rng(5)
    shape = (problem.num_blocks, problem.dim)
    theta, at = jnp.asarray(rng.normal(size=shape)), jnp.asarray(rng.normal(size=shape))
    servers = jnp.arange(size, dtype=jnp.int32) + 1
    features = jnp.asarray(rng.normal(size=(size, 3) if parameters == "shared" else 3))
    new = Interaction(0, 0, features, servers, jnp.int32(0), jnp.bool_(True))

    def gradient(theta):
        def loss(theta):
            u = features @ theta[0] if parameters == "shared" else theta[servers] @ features
            return jnp.log1p(jnp.sum(jnp.exp(u))) - u[0]

        return jax.grad(loss)(theta)

    blocks = jnp.zeros(1, jnp.int32) if parameters == "shared" else servers

    @jax.jit
    def taylor(theta, at):
        def along(point):
            return jax.jvp(gradient, (point,), (at - theta,))[1]

        bent = jax.jvp(along, (theta,), (at - theta,))[1]
        return (gradient(theta) + along(theta) + 0.5 * bent)[blocks]

    @jax.jit
    def models(theta, at):
        rows = likelihood.encode_rows(problem, new, theta)[:, :, None]
        about, own = running_estimate._expansion_points(theta, problem, blocks)
        there = running_estimate._expansion_points(at, problem, blocks)[0]
        expanded = [
            likelihood.expand(problem, rows[a], about[a], own[a]) for a in range(len(blocks))
        ]
        return [
            loss_model.recenter(problem, model, there[a], own[a]).value
            for a, model in enumerate(expanded)
        ]

    np.testing.assert_allclose(jnp.stack(models(theta, at)), taylor(theta, at), atol=1e-9)


@pytest.mark.parametrize(("dim", "rounds"), [(5, 1000), (384, 300)])
def test_the_root_stays_the_root_of_the_inverse_in_float32(dim, rounds):
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(rounds, dim))
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    root = jax.lax.scan(lambda w, x: (gaussian.shrink(w, x), None), jnp.eye(dim), rows)[0]
    root = np.asarray(root, np.float64)
    design = np.eye(dim) + rows.T.astype(np.float64) @ rows
    assert np.abs(root.T @ root @ design - np.eye(dim)).max() < 1e-5


def test_compensated_sums_recover_rounding_errors():
    """Ten thousand numbers that are each lost beside the sum are not lost together."""
    small = np.float32(2e-8) * np.array([[1.0, 0.5, -1.0]], np.float32)
    begun = running_estimate.RunningEstimate(*[None] * 5)._replace(
        model=jnp.ones((1, 3)), lost=jnp.zeros((1, 3))
    )
    grown = jax.jit(
        lambda work: jax.lax.fori_loop(
            0, 10_000, lambda _, one: running_estimate._add_models(one, small), work
        )
    )(begun)
    exact = 1 + 10_000 * small.astype(np.float64)
    model, lost = (np.asarray(one, np.float64) for one in (grown.model, grown.lost))
    np.testing.assert_allclose(model, exact, rtol=2e-7)
    np.testing.assert_allclose(model + lost, exact, rtol=1e-9)
