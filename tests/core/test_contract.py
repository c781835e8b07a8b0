"""What the contract looks at in every round of a run, beside plain words."""

import itertools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cqbjax.core import conformance, contract, rng, simulate
from cqbjax.core.contract import Breach, are_valid_servers, holds_query, record_breach
from cqbjax.core.types import Action, LoggedOutcomes, Problem, Queue, Workload
from cqbjax.policies import RandomRouting

PROBLEM = Problem(4, 3, 2, 5, 9, "disjoint", True)


def test_servers_are_distinct_increasing_numbers():
    every = np.array(list(itertools.product(range(-1, 5), repeat=3)), np.int32)
    fine = [0 <= a < b < c <= 3 for a, b, c in every.tolist()]
    np.testing.assert_array_equal(are_valid_servers(jnp.asarray(every), 4), fine)
    assert sum(fine) == 4
    one = jnp.asarray([[-1], [0], [3], [4]])
    assert are_valid_servers(one, 4).tolist() == [False, True, True, False]


def test_a_slot_holds_a_query_where_one_has_arrived():
    arrived = jnp.asarray([3, 0, 7], jnp.int32)
    slots = [-3, -1, 0, 1, 2, 3, 99]
    held = [bool(holds_query(jnp.int32(slot), arrived)) for slot in slots]
    assert held == [slot in (0, 2) for slot in slots]
    both = holds_query(jnp.asarray([1, 2]), jnp.stack([arrived, arrived]))
    assert both.tolist() == [False, True]


@jax.jit
def watch(breach, slot, servers, round_, valid):
    queue = Queue(*[jnp.asarray([1, 0, 2], jnp.int32)] * 3)
    action = Action(slot, servers, jnp.bool_(False))
    return record_breach(breach, PROBLEM, queue, action, round_, valid)


def test_first_contract_breach_is_recorded():
    breach, breach_rounds = contract.empty_breach(PROBLEM), []
    assert breach.servers.shape == (3,)
    rounds = [
        (0, [0, 1, 2], True), (1, [0, 1, 2], False), (2, [1, 1, 2], False),
        (0, [0, 2, 1], True), (1, [0, 1, 3], True), (0, [0, 1, 2], True),
    ]  # fmt: skip
    for number, (slot, servers, valid) in enumerate(rounds, 1):
        decision = jnp.int32(slot), jnp.asarray(servers, jnp.int32), jnp.int32(number)
        breach = watch(breach, *decision, jnp.bool_(valid))
        breach_rounds.append(int(breach.round))
    assert breach_rounds == [0, 0, 0, 4, 4, 4], "of an empty queue nothing breaks it"
    assert (int(breach.slot), breach.servers.tolist()) == (0, [0, 2, 1])
    slot_alone = watch(Breach(*[jnp.int32(0)] * 2, breach.servers), jnp.int32(1),
                         jnp.asarray([0, 1, 3]), jnp.int32(7), jnp.bool_(True))  # fmt: skip
    assert (int(slot_alone.round), int(slot_alone.slot)) == (7, 1)


def test_contract_breaches_are_reported_in_one_sentence():
    assert contract.describe_breach(PROBLEM, 7, 1, [0, 1, 4]) == (
        "select must return 3 distinct server numbers in 0..3, increasing, and in round 7 it "
        "returns [0, 1, 4]"
    )
    message = contract.describe_breach(PROBLEM, 7, 1, [0, 1, 3])
    assert message == "select must pick a waiting query, and slot 1 of round 7 holds none"
    with pytest.raises(contract.ContractError, match="mine: wrong"), contract.prefix_errors("mine"):
        contract.require(False, "wrong")
    contract.require(True, "wrong")


FAULTS = {
    1: dict(contexts=np.full((5, 2), np.nan)),
    2: dict(utilities=np.full((5, 4), np.inf)),
    3: dict(arrival_rows=np.full((9, 2), 5)),
    4: dict(prompts=np.full(5, -1)),
}


def test_instance_faults_are_counted():
    problem = PROBLEM._replace(max_arrivals=2, num_prompts=8)
    workload = Workload(
        np.zeros((5, 2)), np.zeros((5, 4)), np.zeros((9, 2), np.int32), np.full(5, 7, np.int32)
    )
    arrives = np.full(9, 1)

    def fault(workload, arrives=arrives, problem=problem):
        batch = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], (workload, arrives))
        return int(conformance.instance_faults(problem, *batch)[0])

    assert fault(workload) == 0 == fault(workload, np.array([0, 2] * 4 + [0]))
    for number, changed in FAULTS.items():
        assert fault(workload._replace(**changed)) == number
    assert fault(workload._replace(prompts=np.full(5, 8))) == 4
    assert fault(workload._replace(arrival_rows=np.full((9, 2), -1))) == 3
    rows = np.zeros((9, 2), int)
    rows[:, 1] = 99  # nobody comes second
    assert fault(workload._replace(arrival_rows=rows)) == 0
    assert fault(workload, np.full(9, 3)) == 5 == fault(workload, np.full(9, -1))
    for following, number in ((4, 0), (5, 6), (-1, 6)):
        logged = LoggedOutcomes(np.zeros(5, bool), np.full(5, following))
        assert fault(workload._replace(log=logged)) == number


@pytest.mark.parametrize(
    ("overflow", "slot", "message"),
    [
        (1, None, "capacity=8 overflowed in round 1: raise it"),
        (0, 2, "slot 2 of round 1 holds none"),
        (0, 0, None),
        (0, None, None),
    ],
)
def test_overflows_and_breaches_of_a_traced_run_are_reported(overflow, slot, message, monkeypatch):
    """Also in the first round."""
    broken = None if slot is None else Breach(np.int32(slot > 0), np.int32(slot), np.arange(3))
    carry = types.SimpleNamespace(overflow=np.int32(overflow), breach=broken)
    monkeypatch.setattr(simulate, "run_rounds", lambda *_: ("decisions", carry))
    arguments = rng.run_key(0), RandomRouting(), None, 0.5, PROBLEM, 8
    if message is None:
        assert simulate.trace(*arguments) == "decisions"
        return
    with pytest.raises(ValueError, match=message):
        simulate.trace(*arguments)
