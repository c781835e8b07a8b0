"""Rounds that show fewer than K servers: what is shown, paid, learnt and refused."""

from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

import cqbjax
from cqbjax import sources
from cqbjax.core import conformance, contract, mnl, rng
from cqbjax.core.pytree import pytree
from cqbjax.core.recorders import answers, queue
from cqbjax.core.recorders.answers import TrafficShare
from cqbjax.core.types import NO_SERVER, Action, Needs, Observation, Problem, Queue
from cqbjax.policies import Acqb

SYNTHETIC = sources.Synthetic(num_servers=4, dim=3)
DRAW = np.random.default_rng(5)
POOL = sources.PromptPool(
    contexts=DRAW.normal(size=(30, 6)), utilities=DRAW.normal(size=(30, 4)), pool_size=20
)
SOURCES = {
    "disjoint": SYNTHETIC,
    "shared": sources.Synthetic(num_servers=4, dim=3, parameters="shared"),
    "pool": POOL,
}
UTILITIES = jnp.asarray([0.5, -1.0, 2.0, 0.1, 0.3])


def action(shown, servers=(0, 2)):
    whole = jnp.asarray(servers, jnp.int32)
    return Action(jnp.int32(0), whole, jnp.bool_(False), jnp.asarray(shown))


@pytest.mark.slow
@pytest.mark.parametrize("name", SOURCES)
def test_exploit_size_k_equals_the_plain_policy(name):
    """Every mask is there, and hides nobody: as without them, bit for bit."""
    swept = cqbjax.sweep(
        {"plain": Acqb(alpha_scale=0.3), "mixed": Acqb(alpha_scale=0.3, exploit_size=2)},
        SOURCES[name], arrival_rate=[0.7], num_seeds=3, horizon=150, K=2,
    )  # fmt: skip
    for name in ("queue_length", "regret", "departures", "explored"):
        mine, plain = (swept[name].sel(policy=label) for label in ("mixed", "plain"))
        np.testing.assert_array_equal(mine, plain, name)
    assert float(swept.departures.max()) > 50


def observe(size=2):
    """Two queries wait; the second one's best server has the largest utility."""
    problem = Problem(5, size, 2, 3, 9, "disjoint", True)
    numbers = ([0, 1, 2], [4, 5, 0], [0, 0, 0])
    queue = Queue(*(jnp.asarray(one, jnp.int32) for one in numbers))
    table, one = jnp.asarray(DRAW.normal(size=(3, 2))), jnp.int32(1)
    return Observation(
        problem, jnp.int32(6), queue, table[queue.row], one > 0, one, queue.row, None
    )


def test_exploit_size_1_offers_one_server_and_k_when_exploring(monkeypatch):
    # The query of the two best answers is not the one of the best answer.
    optimistic = jnp.asarray([[3.0, 2.9, 0, 0, 0], [-1, -1, 3.1, -9, -2], [0] * 5])
    monkeypatch.setattr(Acqb, "optimistic", lambda self, draws, state, seen: optimistic)
    seen, key = observe(), rng.round_key(rng.run_key(1), 6)
    state = SimpleNamespace(belief=None, turn=jnp.int32(5), tally=None)
    exploits, explores = Acqb(c1=0.0, exploit_size=1), Acqb(c1=1e9, exploit_size=1)
    made = exploits.select(key, state, seen)
    assert int(made.slot) == 1 and made.servers[made.offered].tolist() == [2]
    assert bool(contract.are_valid_servers(made.servers, 5)) and not bool(made.explored)
    assert int(Acqb(c1=0.0).select(key, state, seen).slot) == 0
    made = explores.select(key, state, seen)
    assert made.offered.all() and made.servers.tolist() == [1, 3] and bool(made.explored)


def test_masked_servers_do_not_change_utilities_or_regret():
    one = action([False, True])
    assert one.answering_servers.tolist() == [2, 2]
    assert action([True, True]).answering_servers.tolist() == [0, 2]
    np.testing.assert_array_equal(
        mnl.mark_servers(one.answering_servers, 5), [False, False, True, False, False]
    )
    lost = queue.round_regret(UTILITIES, one, jnp.bool_(True))
    e = np.exp(UTILITIES)
    both = e[2] + e[0]
    np.testing.assert_allclose(lost, both / (1 + both) - e[2] / (1 + e[2]), rtol=1e-5)
    prices = SimpleNamespace(dollars=jnp.asarray([[1.0, 10.0, 100.0, 1.0, 1.0]]))
    round_ = SimpleNamespace(
        action=one, prices=None, valid=jnp.bool_(True),
        before=SimpleNamespace(row=jnp.zeros(9, int)),
        workload=SimpleNamespace(answer_costs=prices),
    )  # fmt: skip
    assert float(answers.attempt_cost(round_)) == 100.0
    shares = TrafficShare().update(jnp.zeros(5, jnp.int32), round_)
    assert shares.tolist() == [0, 0, 1, 0, 0]


def test_traffic_and_cost_at_several_channels_count_only_offered_servers():
    servers = jnp.asarray([[0, 2], [0, 1]], jnp.int32)
    shown = jnp.asarray([[False, True], [True, True]])
    made = Action(jnp.arange(2, dtype=jnp.int32), servers, jnp.zeros(2, bool), shown)
    for valid, known in (([True, True], [1, 1, 1]), ([True, False], [0, 0, 1])):
        round_ = SimpleNamespace(action=made, valid=jnp.asarray(valid))
        assert TrafficShare().update(jnp.zeros(3, jnp.int32), round_).tolist() == known
    prices = SimpleNamespace(dollars=jnp.asarray([[1.0, 10.0, 100.0], [2.0, 20.0, 200.0]]))
    round_ = SimpleNamespace(
        action=made, prices=jnp.asarray([1.0, 3.0, 1.0]),
        before=SimpleNamespace(row=jnp.arange(2)), workload=SimpleNamespace(answer_costs=prices),
    )  # fmt: skip
    assert answers.attempt_cost(round_).tolist() == [100.0, 62.0]


@pytest.mark.parametrize(
    ("size", "fine"), [(0, False), (1, True), (2, True), (3, False), (1.0, False)]
)
def test_exploit_size_is_a_number_up_to_k(size, fine):
    policy, problem = Acqb(exploit_size=size), observe().problem
    if fine:
        policy.check(problem)
    else:
        with pytest.raises(
            ValueError, match=rf"exploit_size={size} must be a whole number in 1..K"
        ):
            policy.check(problem)


@pytree
class Mine:
    """Shows fixed servers."""

    shows: bool = True

    def init(self, problem, contexts):
        return ()

    def select(self, key, state, observation):
        shown = jnp.broadcast_to(jnp.asarray(self.shows, bool), (2,))
        return action(shown)

    def update(self, state, observation, action, feedback):
        return state


@pytree
class DeclaredMixedPolicy(Mine):
    """The same, and says so."""

    needs = Needs(smaller_assortments=True)


def test_smaller_assortments_must_be_declared_and_nonempty():
    problem = SYNTHETIC.problem(2, 9)
    conformance.check_policy(DeclaredMixedPolicy(), problem)
    with pytest.raises(
        contract.ContractError, match="must leave Action.offered out, or the policy's needs"
    ):
        conformance.check_policy(Mine(), problem)
    queue = Queue(*[jnp.asarray([1, 0], jnp.int32)] * 3)
    for shown, at in (([True, False], 0), ([False, False], 7)):
        breach = contract.record_breach(
            contract.empty_breach(problem),
            problem,
            queue,
            action(shown),
            jnp.int32(7),
            jnp.bool_(True),
        )
        assert int(breach.round) == at
    message = contract.describe_breach(problem, 7, 0, breach.servers)
    assert message == "select must offer a server in every round, and in round 7 it offers none"
    assert breach.servers.tolist() == [NO_SERVER] * 2
