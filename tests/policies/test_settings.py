"""What policies are by default, what they ask to be shown, and which contexts they are shown."""

import ast
import dataclasses
import importlib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cqbjax
from cqbjax import estimation
from cqbjax.core import rng
from cqbjax.core.types import Needs, Observation, Problem, Queue, read_needs
from cqbjax.dynamics import ServiceTimes
from cqbjax.estimation import BlockBelief, TableBelief, loss_model
from cqbjax.policies import (
    Acqb,
    ContextWrapper,
    Intercept,
    LinearBandit,
    LlmRanking,
    OptimalPolicy,
    QueueingBandit,
    RandomRouting,
    ReplacedContexts,
    RouterPolicy,
)
from cqbjax.policies._template import EpsilonGreedy
from cqbjax.sources import Synthetic
from cqbjax.testing.fairness import IsolatedPolicy
from cqbjax.testing.policies import Probe

ROOT = Path(cqbjax.__file__).parent
PROBLEM = Problem(3, 2, 4, 5, 9, "disjoint", True)
SCORES = np.zeros((5, 3))


def test_every_constant_of_acqb_is_one_by_default():
    papers = dict(
        kappa=1.0, lambda0=1.0, alpha_scale=1.0, c1=1.0, explore_rounds=0.0, precision=1.0,
        schedule="joint", exploration="decaying", explore_query="newest", optimism="thompson",
        num_samples=None, estimator="auto", exact_steps=0, retry="same", offset=None,
    )  # fmt: skip
    assert Acqb() == Acqb(**papers)
    assert RandomRouting() == RandomRouting(schedule="random", retry="same")
    assert QueueingBandit() == QueueingBandit(index="ucb") and Intercept() == Intercept(share=0.5)
    routed = RouterPolicy(
        scores=SCORES, by="prompt", schedule="oldest", retry="same", precision=1.0
    )
    assert jax.tree.structure(RouterPolicy(scores=SCORES)) == jax.tree.structure(routed)
    assert (
        jax.tree.leaves(RouterPolicy(scores=SCORES))[1:] == jax.tree.leaves(routed)[1:] == [0, 1.0]
    )


def test_only_the_optimal_policy_needs_the_true_utilities_and_only_retry_rules_the_offers():
    view = Intercept()
    within = [ContextWrapper(policy=one, view=view) for one in (Acqb(), Acqb(retry="fallback"))]
    plain = [Acqb(), Acqb(retry="recall"), RandomRouting(), QueueingBandit(), within[0]]
    plain += [LinearBandit(), LlmRanking(), EpsilonGreedy()]
    aware = [Acqb(retry="posterior"), RandomRouting(retry="fallback"), within[1]]
    aware += [RouterPolicy(scores=SCORES, retry="fallback"), LlmRanking(retry="cache")]
    optimal = [OptimalPolicy(), ContextWrapper(policy=OptimalPolicy(), view=view)]
    assert all(read_needs(one).true_utilities for one in optimal)
    for one in (*plain, *aware):
        assert not read_needs(one).true_utilities and not read_needs(one).entry_rounds
    assert not any(read_needs(one).offer_counts for one in (*plain, *optimal))
    assert all(read_needs(one).offer_counts for one in (*aware, OptimalPolicy(retry="fallback")))
    for one in (RandomRouting(), QueueingBandit(), LlmRanking()):
        assert not read_needs(one).contexts
    assert all(
        read_needs(one).contexts for one in (Acqb(), OptimalPolicy(), RouterPolicy(scores=SCORES))
    )
    assert read_needs(Acqb(exploit_size=1)).smaller_assortments
    assert not read_needs(Acqb()).smaller_assortments


def test_auto_estimator_is_chosen_by_problem_shape():
    small = PROBLEM._replace(pooled=False)
    large = PROBLEM._replace(dim=60)
    assert loss_model.depth(small) and not loss_model.depth(large)
    shared, changing = (
        (one._replace(parameters="shared") for one in (small, large)),
        large._replace(age_column=3),
    )
    small_shared, large_shared = shared
    assert not loss_model.depth(large_shared)
    for problem in (small, small_shared, large_shared, changing):
        assert estimation.choose_belief("auto", problem, 3) == BlockBelief(problem, 3)
        assert estimation.choose_belief("running", problem) == BlockBelief(problem)
    assert estimation.choose_belief("auto", large, 2) == TableBelief(large, 2)
    assert estimation.choose_belief("newton_cg", small) == TableBelief(small)
    for problem, error_text in (
        (changing, "features that stay"),
        (large_shared, "parameters=disjoint"),
    ):
        with pytest.raises(ValueError, match=f"estimator=newton_cg needs {error_text}"):
            estimation.choose_belief("newton_cg", problem)


def test_number_of_cached_second_derivatives_is_bounded():
    sizes = {}
    for size, parameters in ((1, "disjoint"), (2, "disjoint"), (3, "disjoint"), (3, "shared")):
        problem = PROBLEM._replace(assortment_size=size, parameters=parameters)
        sizes[size, parameters] = loss_model.width(problem), loss_model.depth(problem)
    assert sizes == {
        (1, "disjoint"): (1, 1), (2, "disjoint"): (3, 2), (3, "disjoint"): (3, 3),
        (3, "shared"): (1, 1),
    }  # fmt: skip
    # One block of d (d (d + 1) / 2) numbers, the last factor in whole eights: 19 * 192, 20 * 216.
    dims = [loss_model.depth(PROBLEM._replace(assortment_size=1, dim=dim)) for dim in (19, 20)]
    assert dims == [1, 0]


def observe(features):
    row = jnp.asarray([2, 0], jnp.int32)
    none = jnp.int32(0)
    return Observation(PROBLEM, none, Queue(row, row, row), features, none, none, row, None)


@pytest.mark.slow
def test_policies_decide_and_learn_on_the_contexts_of_their_view():
    table = np.random.default_rng(0).normal(size=(5, 4))
    own = np.arange(15.0).reshape(5, 3)
    seen = observe(jnp.asarray(table[[2, 0]]))
    for view, dim, shown in (
        (ReplacedContexts(contexts=own), 3, own),
        (
            Intercept(share=0.2),
            5,
            np.concatenate([np.sqrt(0.8) * table, np.full((5, 1), np.sqrt(0.2))], axis=1),
        ),
    ):
        view.check(PROBLEM)
        assert view.dim(PROBLEM) == dim
        np.testing.assert_allclose(view.transform(jnp.asarray(table)), shown, rtol=1e-6)
        np.testing.assert_allclose(
            view.transform(seen.features, seen.queue.row), shown[[2, 0]], rtol=1e-6
        )
        within = ContextWrapper(policy=Acqb(), view=view)
        within.check(PROBLEM)
        problem = within._transform(seen).problem
        assert problem == PROBLEM._replace(dim=dim, policy_contexts=True)
        np.testing.assert_allclose(within._transform(seen).features, shown[[2, 0]], rtol=1e-6)
        state = within.init(PROBLEM, jnp.asarray(table))
        assert within.theta(state, jnp.asarray(table), PROBLEM).shape == (3, dim)
    with pytest.raises(ValueError, match=r"c1=-1 must be a number in \[0, inf\)"):
        ContextWrapper(policy=Acqb(c1=-1), view=Intercept()).check(PROBLEM)


def test_intercept_has_its_share_of_the_squared_norm():
    unit = np.array([[0.6, 0.8], [0.0, -1.0]], np.float32)
    shown = np.asarray(Intercept(share=0.2).transform(jnp.asarray(unit)))
    np.testing.assert_allclose(np.sum(shown**2, axis=1), 1, rtol=1e-6)
    np.testing.assert_allclose(shown, np.column_stack([0.8**0.5 * unit, [0.2**0.5] * 2]), rtol=1e-6)


@pytest.mark.parametrize(("by", "server"), [("prompt", 2), ("row", 1)])
def test_a_router_looks_up_the_prompt_or_the_row_of_the_run(by, server):
    scores = np.zeros((5, 3), np.float32)
    scores[4, 2] = scores[1, 1] = 1
    policy = RouterPolicy(scores=jnp.asarray(scores), by=by)

    @jax.jit
    def select(prompt):
        row = jnp.asarray([1], jnp.int32)
        queue, problem = Queue(row, row, row), PROBLEM._replace(assortment_size=1)
        seen = Observation(problem, None, queue, row, None, None, prompt, None)
        return policy.select(rng.run_key(0), None, seen).servers

    assert select(jnp.asarray([4], jnp.int32)).tolist() == [server]


@pytest.mark.parametrize("mine", [Acqb(), RandomRouting(retry="fallback")], ids=["acqb", "random"])
def test_inner_policies_receive_the_view_in_every_method(mine, monkeypatch):
    """It begins, selects and learns on contexts of the view's dimension."""
    asked, view = [], Intercept()
    kind = type(mine)
    for name, place in (("select", 2), ("update", 1)):
        monkeypatch.setattr(
            kind, name, lambda *arguments, at=place: asked.append(arguments[at + 1])
        )
    table = jnp.ones((5, 4))
    monkeypatch.setattr(kind, "init", lambda self, problem, contexts: (problem, contexts))
    within = ContextWrapper(policy=mine, view=view)
    problem, contexts = within.init(PROBLEM, table)
    seen = observe(jnp.ones((2, 4)))
    within.select(None, None, seen)
    within.update(None, seen, None, None)
    assert contexts.shape == (5, 5) and problem.dim == 5 and problem.policy_contexts
    assert [one.features.shape for one in asked] == [(2, 5)] * 2
    assert all(one.problem == problem for one in asked)


@pytest.mark.parametrize(
    ("view", "problem", "error_text"),
    [
        (
            ReplacedContexts(contexts=np.ones((4, 3))),
            PROBLEM,
            r"contexts has shape \(4, 3\), and .* 5 rows",
        ),
        (ReplacedContexts(contexts=np.ones((3, 5))), PROBLEM, r"contexts has shape \(3, 5\)"),
        (ReplacedContexts(contexts=np.ones(5)), PROBLEM, r"contexts has shape \(5,\)"),
        (ReplacedContexts(contexts=np.full((5, 3), np.nan)), PROBLEM, "contexts must be finite"),
        (
            ReplacedContexts(contexts=np.ones((5, 3))),
            PROBLEM._replace(parameters="shared"),
            "parameters=disjoint",
        ),
        (Intercept(), PROBLEM._replace(parameters="shared"), "an intercept a server needs"),
        (Intercept(share=1.2), PROBLEM, r"share=1.2 must be a number in \[0, 1\]"),
        (Intercept(share=-0.1), PROBLEM, r"share=-0.1 must be a number in \[0, 1\]"),
    ],
)
def test_views_of_wrong_shape_are_rejected(view, problem, error_text):
    with pytest.raises(ValueError, match=error_text):
        view.check(problem)


def test_keywords_are_compared_by_value():
    """A word read from a file is another object than the one in the code."""
    read = "".join(["dis", "joint"])
    assert PROBLEM._replace(parameters=read).num_blocks == 3
    assert PROBLEM._replace(parameters=read).contexts_shape == (5, 4)
    shared = PROBLEM._replace(parameters="".join(["sha", "red"]))
    assert shared.num_blocks == 1 and shared.contexts_shape == (5, 3, 4)
    assert PROBLEM._replace(channels=2).attempts == 18
    assert PROBLEM._replace(max_arrivals=3).max_queries == 27


def wrappers():
    """Yield each class of the package that has a field `policy` and selects."""
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if not isinstance(node, ast.ClassDef):
                continue
            fields = {one.target.id for one in node.body if isinstance(one, ast.AnnAssign)}
            methods = {one.name for one in node.body if isinstance(one, ast.FunctionDef)}
            if "policy" in fields and "select" in methods:
                name = ".".join(path.relative_to(ROOT.parent).with_suffix("").parts)
                yield getattr(importlib.import_module(name), node.name)


def test_wrappers_pass_on_the_needs_of_the_inner_policy():
    found = set(wrappers())
    assert {ContextWrapper, IsolatedPolicy, Probe} <= found
    other = Needs(*(not default for default in Needs()))
    assert not set(zip(other, Needs(), strict=True)) & {(True, True), (False, False)}
    for wrapper in found:
        others = {
            field.name: None
            for field in dataclasses.fields(wrapper)
            if field.default is dataclasses.MISSING and field.name != "policy"
        }
        for declared in (other, Needs()):
            within = type("Within", (), {"needs": declared})()
            assert read_needs(wrapper(policy=within, **others)) == declared, wrapper
        assert read_needs(wrapper(policy=object(), **others)) == Needs(), wrapper


def test_excessive_sample_counts_are_rejected():
    problem = Problem(5, 1, 5, 100, 100, "disjoint", False)
    with pytest.raises(ValueError, match="at most 4,096 can be compiled: at most num_samples=819"):
        Acqb(alpha_scale=0.3, c1=0.25, num_samples=820).check(problem)
    Acqb(alpha_scale=0.3, c1=0.25, num_samples=819).check(problem)


@pytest.mark.parametrize(
    "kind, setting, message",
    [
        (Acqb, {"retry": "again"}, "again must be one of same, fallback, posterior, recall, cache"),
        (Acqb, {"schedule": "fifo"}, "fifo must be one of oldest, newest, least_served"),
        (Acqb, {"optimism": "greedy"}, "greedy must be one of thompson, ucb"),
        (RandomRouting, {"retry": "posterior"}, "posterior must be one of same, fallback"),
        (RandomRouting, {"schedule": "joint"}, "joint must be one of oldest, newest"),
        (QueueingBandit, {"index": "foo"}, "foo must be one of ucb, thompson"),
        (LlmRanking, {"index": "worst"}, "worst must be one of best, thompson, greedy, ucb"),
        (RouterPolicy, {"scores": SCORES, "recall_by": "text"}, "text must be one of row"),
        (RouterPolicy, {"scores": SCORES, "by": "all"}, "all must be one of prompt, row"),
        (ServiceTimes, {"law": "never"}, "never must be one of fixed, geometric"),
        (Synthetic, {"parameters": "both"}, "both must be one of disjoint, shared"),
    ],
)
def test_unknown_options_raise_at_construction(kind, setting, message):
    with pytest.raises(ValueError, match=f"{[*setting][-1]}={message}"):
        kind(**setting)
