"""Every policy of conf/policy through the contract, and planted faults that it must find.

`pytest -k "contract and NAME"` checks the policy of conf/policy/NAME.yaml.
"""

import dataclasses
import functools
import re
from typing import Any

import hydra
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from composing import CONF, compose_config
from tiers import cases

from cqbjax.cli._compose import list_labels
from cqbjax.core import conformance
from cqbjax.core.pytree import pytree, signature_of, static
from cqbjax.core.types import Needs, Problem
from cqbjax.offline import OfflinePolicy, ProjectedPolicy, TrainedRouter, WarmStart
from cqbjax.offline.routers import Conditional
from cqbjax.policies import Acqb, QueueingBandit, RouterPolicy
from cqbjax.policies._template import EpsilonGreedy, State
from cqbjax.testing import PROBLEM, ContractError, check_policy
from cqbjax.testing.policies import check_decisions, check_fields, compile_runs

ROUTERS = [path.stem for path in (CONF / "router").glob("*.yaml")]
# Of the pairings of a router with retries and schedules, one router's stand for all.
PAIRED = [
    label
    for label in list_labels()
    if label in {*ROUTERS, "conditional_recall", "conditional_cache_priority"}
    or label.startswith(("logistic", "lints_", "thompson_", "acqb_warm_"))
    # These two learn no posterior of a prompt, and refuse the rules that need one.
    if not re.search("^(lints|thompson).*_(recall|posterior)", label)
]
LABELS = sorted([*(path.stem for path in (CONF / "policy").glob("*.yaml")), *PAIRED])
FIXED = """optimal random rand_rout q_ucb q_ths cqb_eps acqb acqb_fifo acqb_rr acqb_random acqb_ucb
acqb_explore_fifo acqb_explore_lifo acqb_explore_rr acqb_explore_random acqb_cl
zero knn mlp umr routerdc carrot"""
SINGLE = PROBLEM._replace(num_servers=3, assortment_size=1, dim=2)
# Programs of configured policies: most labels differ from another one in numbers alone.
PROGRAMS: dict[Any, Any] = {}
SHARED = PROBLEM._replace(parameters="shared", pooled=False, num_rows=PROBLEM.horizon)


@functools.cache
def policies() -> Any:
    """Compose all policies at once; one at a time would take as long as the checks."""
    return compose_config(f"policy=[{','.join(LABELS)}]").policy


def configure(label: str) -> Any:
    """Instantiate one policy as the study script does."""
    policy = hydra.utils.instantiate(policies()[label])
    if isinstance(policy, WarmStart):
        draw, rows = np.random.default_rng(1), SINGLE.num_rows
        return policy.make_policy(draw.normal(size=(rows, 3)), draw.normal(size=(rows, 3)))
    if isinstance(policy, TrainedRouter) and isinstance(policy.router, Conditional):
        draw, num_types = np.random.default_rng(1), policy.router.num_types
        types = draw.uniform(0.1, 0.9, (num_types, SINGLE.num_servers))
        scores = draw.normal(size=(SINGLE.num_rows, num_types))
        return policy.make_policy(np.zeros(0), scores, types)
    if isinstance(policy, OfflinePolicy):
        columns = 4 if isinstance(policy, ProjectedPolicy) else SINGLE.num_servers
        return policy.make_policy(np.random.default_rng(1).normal(size=(SINGLE.num_rows, columns)))
    return policy


def test_the_papers_labels_are_known():
    assert set(FIXED.split()) <= set(list_labels())


@pytest.mark.slow
@pytest.mark.parametrize("label", LABELS)
def test_contract_of_the_configured_policy(label):
    policy = configure(label)
    check_fields(policy)
    # As `check_policy` does, with one program for the labels that differ in numbers.
    if (shapes := signature_of(policy)) not in PROGRAMS:
        conformance.check_policy(policy, SINGLE)
        PROGRAMS[shapes] = compile_runs(policy, SINGLE)
    check_decisions(policy, SINGLE, program=PROGRAMS[shapes])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "problem"),
    [
        pytest.param(EpsilonGreedy(), PROBLEM, id="_template"),
        pytest.param(QueueingBandit(), None, id="q_ucb_at_one_answer"),
        pytest.param(Acqb(alpha_scale=0.5), PROBLEM, id="acqb_pairs"),
        pytest.param(Acqb(alpha_scale=0.5), SHARED, id="acqb_shared"),
        pytest.param(Acqb(estimator="newton_cg"), PROBLEM, id="acqb_newton_cg"),
        pytest.param(Acqb(window=8), PROBLEM, id="acqb_that_hops"),
        pytest.param(
            RouterPolicy(scores=np.random.default_rng(0).normal(size=(12, 4)), schedule="joint"),
            PROBLEM,
            id="routed",
        ),
    ],
)
def test_contract_at_other_shapes(policy, problem):
    check_policy(policy, problem)


@pytree
class FaultyTemplate:
    """The template with one part exchanged.

    Attributes:
        good: the template.
        act: changes an action.
        learn: (old state, learnt state, feedback) -> state.
    """

    good: EpsilonGreedy = dataclasses.field(default_factory=EpsilonGreedy)
    act: Any = static(default=lambda action, observation: action)
    learn: Any = static(default=lambda old, new, feedback: new)

    def init(self, problem: Problem, contexts) -> State:
        return self.good.init(problem, contexts)

    def select(self, key, state, observation):
        return self.act(self.good.select(key, state, observation), observation)

    def update(self, state, observation, action, feedback):
        return self.learn(state, self.good.update(state, observation, action, feedback), feedback)


HIDDEN = []


def act_impurely(action, observation):
    HIDDEN.append(None)
    return action._replace(servers=(action.servers + len(HIDDEN)) % 4)


def draw_outside(action, observation):
    slot = jnp.asarray(np.random.default_rng().integers(2**30), jnp.int32)
    return action._replace(slot=jnp.where(slot < 0, slot, action.slot))


def forget_in_empty_rounds(old, new, feedback):
    """Forget everything in a round without a query."""
    return jax.tree.map(lambda leaf: jnp.where(feedback.valid, leaf, 0.0), new)


def learn_from_the_dummy(old, new, feedback):
    push = jnp.where(feedback.valid, 0.0, 50.0 * (1 + feedback.choice))
    return new._replace(accepted=new.accepted + push * jnp.asarray([1.0, -1.0, 1.0, -1.0]))


def read_the_last_slot(action, observation):
    return action._replace(slot=jnp.int32(observation.queue.row.shape[0] + 3))


FAULTS = {
    "distinct server": dict(act=lambda a, o: a._replace(servers=jnp.zeros(2, jnp.int32))),
    "increasing": dict(act=lambda a, o: a._replace(servers=a.servers[::-1])),
    "server numbers in 0..3": dict(act=lambda a, o: a._replace(servers=a.servers + 2)),
    "waiting query": dict(act=lambda a, o: a._replace(slot=(a.slot + 1) % o.queue.row.shape[0])),
    "slot 51 of round": dict(act=read_the_last_slot),
    "Action.slot must be int32": dict(act=lambda a, o: a._replace(slot=a.slot * 1.0)),
    "Action.servers must be int32[2]": dict(act=lambda a, o: a._replace(servers=a.servers[:1])),
    "Action.explored must be bool": dict(act=lambda a, o: a._replace(explored=jnp.int32(0))),
    "must be pure": dict(act=act_impurely),
    "when it is traced again": dict(act=draw_outside),
    "shapes and types": dict(learn=lambda o, n, f: n._replace(offered=n.offered.astype(jnp.int32))),
    "structure that init returns": dict(learn=lambda o, n, f: (n.offered, n.accepted)),
    "leaving out update": dict(learn=forget_in_empty_rounds),
    "valid=False must teach nothing": dict(learn=learn_from_the_dummy),
}


# Messages on actions, states and feedback that must not be used.
QUICK_FAULTS = ("shapes and types",)


@pytest.mark.slow
def test_without_a_fault_nothing_is_found():
    check_policy(FaultyTemplate())


@pytest.mark.parametrize("message", cases(FAULTS, QUICK_FAULTS))
def test_a_planted_fault_is_found(message):
    with pytest.raises(ContractError) as refusal:
        check_policy(FaultyTemplate(**FAULTS[message]))
    assert message in str(refusal.value)


@pytest.mark.slow
def test_a_batch_that_mixes_its_runs_is_found():
    def mix(action, observation):
        # The batching rule sums over the batch; a run alone sees itself only.
        shift = sum_over_the_batch(observation.queue.row[0] + 1) % 4
        return action._replace(servers=jnp.sort((action.servers + shift) % 4))

    with pytest.raises(ContractError, match="must not depend on its batch"):
        check_policy(FaultyTemplate(act=mix))


@jax.custom_batching.custom_vmap
def sum_over_the_batch(value):
    return value


@sum_over_the_batch.def_vmap
def _sum(axis_size, in_batched, value):
    total = jnp.sum(value) if in_batched[0] else axis_size * value
    return jnp.broadcast_to(total, (axis_size,)), True


def test_fields_that_cannot_be_leaves_are_named():
    @pytree
    class WholeNumberField(EpsilonGreedy):
        samples: int = 3

    with pytest.raises(
        ContractError, match=r"WholeNumberField\.samples is 3: a leaf must be a float"
    ):
        check_policy(WholeNumberField())

    @pytree
    class TextField(EpsilonGreedy):
        rule: str = "oldest"

    with pytest.raises(ContractError, match=r"TextField\.rule is 'oldest'"):
        check_policy(TextField())


def test_static_fields_must_be_hashable():
    with pytest.raises(ContractError, match=r"FaultyTemplate\.act is static and must be hashable"):
        check_policy(FaultyTemplate(act=[1, 2]))


def test_a_class_that_is_no_pytree_gets_an_instruction():
    class WithoutDecorator(EpsilonGreedy):
        pass

    with pytest.raises(ContractError, match="WithoutDecorator must be registered as a pytree"):
        check_policy(WithoutDecorator())


@pytest.mark.parametrize("needs", [True, (True, False), Needs(contexts="yes"), Needs])
def test_the_needs_of_a_policy_must_be_needs(needs):
    @pytree
    class UntypedNeeds(EpsilonGreedy):
        needs: Any = static(default=None)

    with pytest.raises(ContractError, match=r"UntypedNeeds\.needs must be Needs of True and False"):
        check_policy(UntypedNeeds(needs=needs))


def test_the_problem_must_have_a_row_for_every_arrival():
    with pytest.raises(ValueError, match="num_rows=12 must reach 48 queries"):
        check_policy(EpsilonGreedy(), PROBLEM._replace(pooled=False))
