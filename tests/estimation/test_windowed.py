"""A window that hops: what the belief that is asked has learnt from, attempt by attempt."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from cqbjax.estimation import WindowedBelief, WindowedBeliefState, choose_belief
from cqbjax.estimation.belief import Interaction
from cqbjax.testing import PROBLEM

ATTEMPTS, WINDOW = 40, 6


@dataclasses.dataclass(frozen=True)
class LearntRows:
    """A belief that notes which table rows it has learnt from, and under which numbers."""

    least_lambda0 = 0.0

    def init(self, contexts, lambda0, offset=None):
        return jnp.zeros((len(contexts), 2)).at[:, 1].set(lambda0)

    def update(self, state, new):
        noted = jnp.stack([jnp.float32(1), new.round.astype(jnp.float32)])
        return jnp.where(new.valid, state.at[new.row].set(noted), state)


def play(valid):
    """Return what the elder has noted after each attempt: [n, n, 2], [n] valid."""
    belief = WindowedBelief(LearntRows(), WINDOW)

    def one(state, row_and_valid):
        at, valid = row_and_valid
        new = Interaction(at + 1, at, jnp.zeros(1), jnp.zeros(1, jnp.int32), jnp.int32(0), valid)
        state = belief.update(state, new)
        return state, state.elder

    state = belief.init(jnp.zeros((len(valid), 1)), jnp.float32(-1))
    return jax.lax.scan(one, state, (jnp.arange(len(valid)), valid))[1]


def test_older_belief_covers_half_a_window_to_a_whole_window():
    valid = np.random.default_rng(0).random((3, ATTEMPTS)) < np.array([[1.0], [0.7], [0.3]])
    elder = np.asarray(jax.jit(jax.vmap(play))(valid))
    for run, noted in zip(valid, elder, strict=True):
        counted = np.cumsum(run)
        assert counted[-1] > 1.5 * WINDOW
        for at, so_far in enumerate(counted):
            half = WINDOW // 2
            first = max(so_far // half - 1, 0) * half
            known = run & (counted > first) & (np.arange(ATTEMPTS) <= at)
            np.testing.assert_array_equal(noted[at, :, 0], known)
            assert known.sum() == so_far or half <= known.sum() < WINDOW
            # Attempts that nothing was learnt from are as `init` left them.
            assert (noted[at, ~known, 1] == -1).all()
            numbers = noted[at, known, 1]
            assert (np.diff(numbers) == 1).all() and (numbers <= WINDOW).all()
            assert not len(numbers) or numbers[0] in (1, half + 1)


class ObservedBelief:
    """A belief that says what it was asked, and of which state."""

    def __getattr__(self, name):
        return lambda *asked: (name, *asked)


def test_windowed_belief_delegates_every_query_to_the_older_belief():
    belief, state = (
        WindowedBelief(ObservedBelief(), WINDOW),
        WindowedBeliefState("elder", "younger", 0, None),
    )
    assert belief.num_updates(state) == ("num_updates", "elder")
    assert belief.theta(state, "table") == ("theta", "elder", "table")
    for normal in ("z", None):
        utilities = belief.optimistic_utilities(state, "seen", 0.5, normal)
        assert utilities == ("optimistic_utilities", "elder", "seen", 0.5, normal)


def test_windowed_belief_stores_only_its_window():
    for channels, attempts in ((1, 6), (4, 8)):
        belief = choose_belief("auto", PROBLEM._replace(channels=channels), window=6)
        assert belief.belief.problem.attempts == attempts
