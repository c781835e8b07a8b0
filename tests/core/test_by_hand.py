"""Two short runs in which nothing is left to chance, worked out on paper round by round."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax.core import queueing, rng, simulate
from cqbjax.core.pytree import as_arrays, pytree
from cqbjax.core.recorders import OPTIONAL, STANDARD, queries
from cqbjax.core.recorders.queries import GAVE_UP, SATISFIED, THERE
from cqbjax.core.scenario import UserModel, with_dynamics
from cqbjax.core.types import Action, AnswerCosts, Problem, Workload
from cqbjax.dynamics import (
    DelayedFeedback,
    Impatience,
    Orbit,
    Outages,
    Prices,
    ServiceChannels,
    ServiceTimes,
)
from cqbjax.testing.instances import FAST_COMPILE_OPTIONS

ROUNDS, SLOTS, NAN = 8, 8, np.nan
# A choice among such utilities is certain in float32.
YES, NO = 20.0, -20.0
RECORDING = (*STANDARD, *OPTIONAL.values())


@pytree
class ScriptedSource:
    """Queries of given rows come in given rounds."""

    utilities: Array
    dollars: Array
    scores: Array
    rows: Array
    counts: Array

    def problem(self, K: int, horizon: int) -> Problem:
        rows, servers = self.utilities.shape
        most = 1 if self.rows.ndim == 1 else self.rows.shape[-1]
        return Problem(
            servers, K, 1, rows, horizon, "disjoint", True, has_costs=True,
            max_arrivals=most,
        )  # fmt: skip

    def draw_workload(self, key: Array, arrival_rate: Array, problem: Problem) -> Workload:
        rows = len(self.utilities)
        billed = AnswerCosts(self.dollars, self.scores)
        numbers = 100 + jnp.arange(rows, dtype=jnp.int32)
        return Workload(
            jnp.ones((rows, 1)), self.utilities, self.rows, numbers, answer_costs=billed
        )

    def draw_arrivals(self, key: Array, arrival_rate: Array, horizon: int) -> Array:
        return self.counts > 0 if self.rows.ndim == 1 else self.counts


@pytree
class FixedPatience(UserModel):
    """Each query leaves after its own number of rounds."""

    rounds: Array

    def draw_patience(self, key: Array, problem: Problem) -> Array:
        return self.rounds


@pytree
class ScriptedPolicy:
    """Serve the oldest query with the assortment that its row and attempts say; keep what is heard.

    Each [T, c] entry of the state is number, valid, choice, row, attempts.
    """

    plan: Array
    exploring: Array

    def init(self, problem: Problem, contexts: Array) -> Any:
        return jnp.full((problem.horizon, problem.channels, 5), -1, jnp.int32), jnp.int32(0)

    def select(self, key: Array, state: Any, seen: Any) -> Action:
        slot = queueing.pick("oldest", seen.queue, jnp.zeros(()))
        row = seen.queue.row[slot]
        servers = self.plan[row, seen.queue.served[slot]]
        # A dummy job of an empty queue explores too.
        explored = self.exploring[row] | ~queueing.mark_waiting(seen.queue).any()
        return Action(slot, servers, explored)

    def update(self, state: Any, seen: Any, action: Action, feedback: Any) -> Any:
        received, calls = state
        number = -1 if feedback.number is None else feedback.number
        slot, t = action.slot, seen.round - 1
        new = [number, feedback.valid, feedback.choice, seen.queue.row[slot],
               seen.queue.served[slot]]  # fmt: skip
        new = jnp.stack([jnp.asarray(one, jnp.int32) for one in new])
        place = calls % received.shape[1]
        return received.at[t, place].set(new), calls + 1


def play(source, users, service, size, plan, exploring):
    """Return what recorders read, by round or of the run, and what was heard [T, c, 5]."""
    policy = ScriptedPolicy(plan=np.asarray(plan, np.int32), exploring=np.asarray(exploring))
    source = as_arrays(with_dynamics(source, users, service))
    problem = source.problem(size, ROUNDS)

    @functools.partial(jax.jit, compiler_options=FAST_COMPILE_OPTIONS)
    def run(source, policy):
        instance = simulate.draw_instance(rng.run_key(0), source, jnp.float32(0.5), problem)
        carry = simulate.start(policy, problem, instance, SLOTS, recording=RECORDING)
        stretch = simulate.Segment(1, 1, ROUNDS)
        return simulate.advance(policy, problem, instance, carry, stretch, ROUNDS, RECORDING)

    carry, read = jax.tree.map(np.asarray, run(source, policy))
    return read, carry.state[0]


def table(rows):
    """Return the rows of some queries, by their numbers, as the recorder has them."""
    made = np.full((max(rows) + 1, len(queries.FIELDS)), NAN)
    for number, row in rows.items():
        made[number] = row
    return made


def check(read, known, rows):
    for name, values in known.items():
        np.testing.assert_allclose(read[name], values, rtol=1e-5, atol=1e-6, err_msg=name)
    assert len(read["queries"]) >= len(rows)
    np.testing.assert_allclose(read["queries"][: len(rows)], rows, rtol=1e-5)
    assert np.isnan(read["queries"][len(rows) :]).all()
    assert set(known) | {"queries", "time_in_system"} == {one.name for one in RECORDING}


def times(first, later):
    """Return the counts of times in system, of few rounds each."""
    counts = np.zeros((2, 8), int)
    for which, each in enumerate((first, later)):
        np.add.at(counts[which], np.asarray(each, int) - 1, 1)
    return counts


def test_users_of_little_patience_at_one_channel():
    """Patience is three rounds and three attempts; from round 4 on prices are higher.

    Query 0 comes in round 1, fails in 2, and is satisfied in 3. Query 1 comes in 2 and is satisfied
    in 4. Query 2 comes in 3, fails in 5, 6 and 7, and gives up. Query 3 comes in 4, is not served
    in 5, 6 and 7, and leaves. Query 6 comes in 7 and is satisfied in 8.
    """
    source = ScriptedSource(
        utilities=np.asarray([[YES, NO, NO], [NO, NO, YES], [NO, 0.0, NO]]),
        dollars=np.asarray([[1.0, 2, 4], [8, 16, 32], [64, 128, 256]]),
        scores=np.asarray([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6], [0.7, 0.8, 0.9]]),
        rows=np.asarray([0, 1, 2, 0, 1, 1, 1, 1], np.int32),
        counts=np.asarray([1, 1, 1, 1, 0, 0, 1, 0], bool),
    )
    users = [Impatience(attempts=3, patience=3)]
    service = [Prices(factors=[10, 100, 1000], since=4)]
    plan = np.array([[[1], [0], [0]], [[2]] * 3, [[0]] * 3])
    read, received = play(source, users, service, 1, plan, [False, False, True])
    # Rounds 1 to 8; paid are 2, 1, 32,000, then 640 three times, and 32,000.
    paid = np.cumsum([0, 2, 1, 32_000, 640, 640, 640, 32_000])
    left = np.array([0, 0, 1, 2, 2, 2, 2, 3])
    some = np.where(left > 0, left, NAN)
    shown = np.cumsum([[0, 0, 0], [0, 1, 0], [1, 0, 0], [0, 0, 1], *[[1, 0, 0]] * 3, [0, 0, 1]], 0)
    with np.errstate(invalid="ignore"):
        traffic = shown / shown.sum(axis=1, keepdims=True)
    check(
        read,
        {
            "queue_length": [1, 2, 2, 2, 2, 2, 1, 0],
            "departures": left,
            "explored": [0, 0, 0, 0, 1, 2, 3, 3],
            "regret": [0, 1, 1, 1, 1.5, 2, 2.5, 2.5],
            "attempts": [NAN, NAN, 2, 3 / 2, 3 / 2, 3 / 2, 3 / 2, 4 / 3],
            "gave_up": [NAN, NAN, 0, 0, 0, 0, 2 / 4, 2 / 5],
            "dollars": paid / some,
            "score": np.array([0, 0, 0.1, 0.7, 0.7, 0.7, 0.7, 1.3]) / some,
            "traffic": traffic,
            "fairness": [NAN, NAN, 1, 1, 1, 1, 1, 5**2 / (3 * 9)],
            "largest_wait": [0, 1, 2, 2, 2, 3, 4, 4],
            "away": [0] * 8,
            "in_service": [0] * 8,
        },
        table({
            0: [1, 2, 3, SATISFIED, 2, 0, 3, 0.1, 100],
            1: [2, 4, 4, SATISFIED, 1, 2, 32_000, 0.6, 101],
            2: [3, 5, 7, GAVE_UP, 3, NAN, 1920, NAN, 102],
            3: [4, NAN, 7, GAVE_UP, 0, NAN, NAN, NAN, 100],
            6: [7, 8, 8, SATISFIED, 1, 2, 32_000, 0.6, 101],
        }),
    )  # fmt: skip
    np.testing.assert_array_equal(read["time_in_system"][:, :8], times([2, 1], [2]))
    assert read["time_in_system"].sum() == 3
    # At one channel attempts have no numbers of their own; what is heard is of who was served.
    assert (received[:, 0, 0] == -1).all()
    valid = received[:, 0, 1] == 1
    assert valid.tolist() == [False] + [True] * 7
    assert received[valid, 0, 2:].tolist() == [
        [1, 0, 0], [0, 0, 1], [0, 1, 0], [1, 2, 0], [1, 2, 1], [1, 2, 2], [0, 1, 0]
    ]  # fmt: skip


def test_orbits_long_attempts_and_late_feedback_at_two_channels():
    """Server 2 takes three rounds, the others one; a failed query is in orbit for three; K is 3.

    Queries 0 and 1 arrive in round 1 and are in service in 2, 3 and 4, where both fail. Queries 2
    and 3 arrive in 2; one waits for two rounds and leaves in 4, the other for one and leaves in 3.
    Queries 4 and 5 arrive in 3; in 5 one is satisfied, the other fails. Queries 0 and 1 wait again
    from round 7 on: one gives up, the other is satisfied. Query 5 gives up in 8, where query 14
    arrives.
    """
    source = ScriptedSource(
        utilities=np.asarray(
            [[YES, NO, NO, NO], [NO, YES, NO, NO], [NO, NO, NO, -15.0], [NO, NO, NO, NO]]
        ),
        dollars=np.asarray(2.0 ** np.arange(16).reshape(4, 4)),
        scores=np.asarray(np.arange(16).reshape(4, 4) / 16),
        rows=np.asarray([[2, 0], [1, 3], [1, 3], *[[3, 3]] * 4, [0, 1]], np.int32),
        counts=np.asarray([2, 2, 2, 0, 0, 0, 0, 1], np.int32),
    )
    # Only rounds in the queue count: no query but these two waits for two of them.
    max_wait = np.full((8, 2), 2, np.int32)
    max_wait[1] = 2, 1
    users = [
        Impatience(attempts=2, pretends=1.0),
        FixedPatience(rounds=max_wait),
        Orbit(delays=[3]),
    ]
    service = [
        ServiceChannels(count=2), ServiceTimes(rounds=[1, 1, 3, 1]), DelayedFeedback(delay=1),
        Prices(factors=[10, 100, 1000, 10_000], since=5), Outages(until=[8, 8, 4, 8]),
    ]  # fmt: skip
    slow, quick = [1, 2, 3], [0, 1, 3]
    plan = np.array([[slow, quick], [quick] * 2, [[0, 2, 3], quick], [quick] * 2])
    read, received = play(source, users, service, 3, plan, [True, False, False, False])
    # What the three answers of each attempt cost, in the round in which it ends.
    of_0 = [2.0**8 + 2**10 + 2**11, 10 * 2.0**8 + 100 * 2**9 + 10_000 * 2**11]
    of_1 = [2.0**1 + 2**2 + 2**3, 10 * 2.0**0 + 100 * 2**1 + 10_000 * 2**3]
    of_4 = 10 * 2.0**4 + 100 * 2**5 + 10_000 * 2**7
    of_5 = 10 * 2.0**12 + 100 * 2**13 + 10_000 * 2**15
    paid = np.cumsum([0, 0, 0, of_0[0] + of_1[0], of_4 + of_5, 0, of_0[1] + of_1[1], of_5])
    left = np.array([0, 0, 0, 0, 1, 1, 2, 2])
    some = np.where(left > 0, left, NAN)
    counts = {4: [1, 1, 2, 2], 5: [2, 2, 0, 2], 7: [2, 2, 0, 2], 8: [1, 1, 0, 1]}
    shown = np.cumsum([counts.get(t, [0] * 4) for t in range(1, 9)], axis=0)
    with np.errstate(invalid="ignore"):
        traffic = shown / shown.sum(axis=1, keepdims=True)
    check(
        read,
        {
            "queue_length": [2, 2, 3, 2, 0, 2, 1, 1],
            "away": [0, 0, 0, 2, 3, 1, 0, 0],
            "in_service": [0, 2, 2, 0, 0, 0, 0, 0],
            "departures": left,
            # An attempt counts in the round in which it ends.
            "explored": [0, 0, 0, 1, 1, 1, 2, 2],
            "regret": [0, 0, 0, 1, 1, 1, 1, 1],
            "attempts": [NAN] * 4 + [1, 1, 3 / 2, 3 / 2],
            "gave_up": [NAN] * 2 + [1, 1, 2 / 3, 2 / 3, 3 / 5, 4 / 6],
            "dollars": paid / some,
            "score": np.array([0, 0, 0, 0, 5, 5, 5, 5]) / 16 / some,
            "traffic": traffic,
            "fairness": [NAN] * 4 + [1, 1, 8**2 / (2 * 40), 8**2 / (2 * 40)],
            "largest_wait": [0, 1, 2, 3, 4, 5, 6, 6],
        },
        table({
            0: [1, 2, 7, GAVE_UP, 2, NAN, sum(of_0), NAN, 102],
            1: [1, 2, 7, SATISFIED, 2, 0, sum(of_1), 0.0, 100],
            2: [2, NAN, 4, GAVE_UP, 0, NAN, NAN, NAN, 101],
            3: [2, NAN, 3, GAVE_UP, 0, NAN, NAN, NAN, 103],
            4: [3, 5, 5, SATISFIED, 1, 1, of_4, 5 / 16, 101],
            5: [3, 5, 8, GAVE_UP, 2, NAN, 2 * of_5, NAN, 103],
            14: [8, NAN, NAN, THERE, 0, NAN, NAN, NAN, 100],
        }),
    )  # fmt: skip
    np.testing.assert_array_equal(read["time_in_system"][:, :8], times([2], [6]))
    # Attempts are numbered from 1, two a round; what ended in t is heard in t + 1.
    np.testing.assert_array_equal(received[..., 0], 1 + np.arange(16).reshape(8, 2))
    valid = received[..., 1] == 1
    assert np.argwhere(valid).tolist() == [[4, 0], [4, 1], [5, 0], [5, 1], [7, 0], [7, 1]]
    # The choice, the row and its attempts before. Who gives up pretends that the likeliest of the
    # servers 0, 1 and 3 has satisfied.
    assert received[valid, 2:].tolist() == [
        [3, 2, 0], [3, 0, 0], [1, 1, 0], [3, 3, 0], [2, 2, 1], [0, 0, 1]
    ]  # fmt: skip
