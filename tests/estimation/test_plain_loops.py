"""Both beliefs beside their definitions in plain loops of NumPy: the same estimate every round.

docs/notebook/estimator.md has the definitions. Few dimensions and pages of a few rows: every branch
of the estimators runs in programs that compile in seconds.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiers import cases

from cqbjax.core import platforms
from cqbjax.core.types import Observation, Problem, Queue
from cqbjax.estimation import (
    BlockBelief,
    TableBelief,
    paged_history,
    table_history,
    whitened_kernel,
)
from cqbjax.estimation.belief import Interaction
from cqbjax.testing.instances import FAST_COMPILE_OPTIONS

LAMBDA0, ROUNDS, SERVERS, DIM, TABLE, PAGE = 0.7, 18, 3, 2, 7, 4
# Kernels written for a GPU are carried out by JAX.
GPU = platforms.GPU._replace(interpret=True, barriers=True, slots=3)
CPU = platforms.CPU._replace(slots=3)
PROBLEM = Problem(SERVERS, 1, DIM, TABLE, ROUNDS, "disjoint", pooled=True)


class BeliefByLoops:
    """What both beliefs keep: V and its root, the rows of feedback, theta.

    A row has the derivatives X [K, D] of its utilities by all parameters, what is known of them
    beforehand [K], and y [K] who was chosen.
    """

    def __init__(self, blocks):
        self.theta = np.zeros(blocks * DIM)
        self.root = np.stack([np.eye(DIM) / np.sqrt(LAMBDA0)] * blocks)
        self.counts = np.zeros(blocks)
        self.rows = []

    def coordinates(self, touched):
        return np.concatenate([np.arange(b * DIM, (b + 1) * DIM) for b in touched])

    def learn(self, x, known, y, touched):
        self.counts[touched] += 1
        for one in x:
            for b in touched:
                part = one[b * DIM : (b + 1) * DIM]
                w = self.root[b].T @ part
                r = np.sqrt(1 + w @ w)
                self.root[b] -= np.outer(self.root[b] @ w, w) / (r * (r + 1))
        self.fit(x, known, y, touched)


def moments(x, known, theta):
    """Return the mean of what is chosen, and the outcomes less it, with their probabilities."""
    weights = np.append(np.exp(x @ theta + known), 1.0)
    p, outcomes = weights / weights.sum(), np.vstack([x, np.zeros(x.shape[1])])
    mean = p @ outcomes
    return mean, outcomes - mean, p


def gradient(x, known, y, theta):
    return moments(x, known, theta)[0] - y @ x


def hessian(x, known, theta):
    _, centred, p = moments(x, known, theta)
    return np.einsum("o,oa,ob->ab", p, centred, centred)


def third_derivative(x, theta):
    _, centred, p = moments(x, 0.0, theta)
    return np.einsum("o,oa,ob,oc->abc", p, centred, centred, centred)


class PagesByLoops(BeliefByLoops):
    """`running`: each page expanded where it was last visited, T where each row came."""

    def __init__(self, blocks, visits):
        super().__init__(blocks)
        self.visits = visits
        self.about = [[] for _ in range(blocks)]  # of each row of a block: [row, expanded about]
        self.turn = [0] * blocks

    def model(self, free):
        """Return the gradient and the Hessian of the model by some blocks' parameters."""
        slope, bend = LAMBDA0 * self.theta, LAMBDA0 * np.eye(len(self.theta))
        for b in range(len(self.about)):
            own = self.coordinates([b])
            for number, about in self.about[b]:
                x, y, curved = self.rows[number]
                shift = self.theta - about
                bent = curved @ shift
                at = (
                    gradient(x, 0.0, y, about) + hessian(x, 0.0, about) @ shift + 0.5 * bent @ shift
                )
                slope[own] += at[own]
                bend[own] += (hessian(x, 0.0, about) + bent)[own]
        bend = np.tril(bend[np.ix_(free, free)])
        return slope[free], bend + bend.T - np.diag(np.diag(bend))

    def fit(self, x, known, y, touched):
        free = self.coordinates(touched)
        slope, bend = self.model(free)
        own, residual = x[:, free], np.zeros(len(y))
        pushed = np.linalg.solve(bend, np.column_stack([own.T, slope]))
        start, gram = x @ self.theta - own @ pushed[:, -1], own @ pushed[:, :-1]
        for _ in range(4):
            weights = np.append(np.exp(start - gram @ residual), 1.0)
            p = (weights / weights.sum())[:-1]
            curve = np.diag(p) - np.outer(p, p)
            residual += np.linalg.solve(np.eye(len(y)) + curve @ gram, p - y - residual)
        self.theta[free] -= pushed @ np.append(residual, 1.0)
        self.rows.append((x, y, third_derivative(x, self.theta)))
        for b in touched:
            self.about[b].append([len(self.rows) - 1, self.theta.copy()])
        for _ in range(self.visits):
            for b in touched:
                page = self.turn[b] % -(-len(self.about[b]) // PAGE)
                self.turn[b] = page + 1
                for one in self.about[b][page * PAGE : (page + 1) * PAGE]:
                    one[1] = self.theta.copy()
            self.theta[free] -= np.linalg.solve(*reversed(self.model(free)))


class StepsByLoops(BeliefByLoops):
    """`newton_cg`: a step along the newest row, then Newton steps by conjugate gradients."""

    def __init__(self, blocks, newton, iterations):
        super().__init__(blocks)
        self.newton, self.iterations = newton, iterations

    def loss(self, free):
        slope, bend = LAMBDA0 * self.theta, LAMBDA0 * np.eye(len(self.theta))
        for x, known, y in self.rows:
            slope = slope + gradient(x, known, y, self.theta)
            bend = bend + hessian(x, known, self.theta)
        return slope[free], bend[np.ix_(free, free)]

    def fit(self, x, known, y, touched):
        self.rows.append((x, known, y))
        free = self.coordinates(touched)
        inverse = np.zeros((len(free), len(free)))
        for place, b in enumerate(touched):
            at = slice(place * DIM, (place + 1) * DIM)
            inverse[at, at] = self.root[b] @ self.root[b].T
        slope, bend = self.loss(free)
        along = inverse @ x[:, free].T
        self.theta[free] -= along @ np.linalg.solve(along.T @ bend @ along, along.T @ slope)
        for _ in range(self.newton):
            slope, bend = self.loss(free)
            left, step = -slope, np.zeros(len(free))
            direction = better = inverse @ left
            for _ in range(self.iterations):
                if not left @ better > 1e-30:  # solved
                    break
                length = left @ better / (direction @ bend @ direction)
                step, rest = step + length * direction, left - length * bend @ direction
                new = inverse @ rest
                direction = new + rest @ new / (left @ better) * direction
                left, better = rest, new
            self.theta[free] += step


def feedback(problem, mixed=False):
    """Return contexts, what was known beforehand, and rounds: as a belief gets them, and for loops.

    For loops a round is its index, X, what was known of it, y and the blocks that it touches: those
    of the servers that are shown.
    """
    draw, size = np.random.default_rng(problem.assortment_size), problem.assortment_size
    shared = problem.parameters == "shared"
    contexts = 0.6 * draw.normal(size=problem.contexts_shape) + 0.3
    offset = draw.normal(size=(TABLE, SERVERS))
    servers = np.stack([np.sort(draw.permutation(SERVERS)[:size]) for _ in range(ROUNDS)])
    row, choice = draw.integers(TABLE, size=ROUNDS), draw.integers(size + 1, size=ROUNDS)
    valid = np.arange(ROUNDS) % 6 != 4
    shown = np.ones((ROUNDS, size), bool)
    if mixed:
        # One is left out, also in rounds that teach nothing; who is left out pleases nobody.
        shown = np.arange(ROUNDS)[:, None] % (size + 1) != np.arange(size)
        left_out = (choice[:, None] == np.arange(size)) & ~shown
        choice = np.where(left_out.any(axis=1), size, choice)
    features = contexts[row[:, None], servers] if shared else contexts[row]
    numbers = (np.arange(1, ROUNDS + 1), row, servers, choice)
    first, *others = (one.astype(np.int32) for one in numbers)
    interactions = Interaction(
        first, others[0], features, *others[1:], valid, shown if mixed else None
    )
    rounds = []
    for t in np.flatnonzero(valid):
        x = features[t] if shared else np.zeros((size, SERVERS * DIM))
        for k, server in enumerate([] if shared else servers[t]):
            x[k, server * DIM : (server + 1) * DIM] = features[t]
        here = shown[t]
        known, chosen = offset[row[t], servers[t]], np.eye(size + 1)[choice[t]][:size]
        touched = [0] if shared else servers[t][here]
        rounds.append((t, x[here], known[here], chosen[here], touched))
    return contexts, offset, interactions, rounds


# Three slots of eight hold a query: the first, the third and the fourth.
WAITING = {0: 4, 2: 6, 3: 2}
QUEUE = Queue(
    np.array([4, 0, 6, 2, 0, 0, 0, 0]), np.array([1, 0, 2, 3, 0, 0, 0, 0]), np.zeros(8, int)
)


@functools.partial(
    jax.jit, static_argnames=("belief", "platform"), compiler_options=FAST_COMPILE_OPTIONS
)
def learn_all(belief, platform, contexts, offset, interactions, normal, alpha):
    """Return theta after every round [T, B, d], and what is made of the last state."""

    def one(state, new):
        state = belief.update(state, new)
        return state, state

    with platforms.use(platform):
        last, states = jax.lax.scan(one, belief.init(contexts, LAMBDA0, offset), interactions)
        queue, none = jax.tree.map(jnp.asarray, QUEUE), jnp.int32(0)
        features = contexts[queue.row]
        seen = Observation(belief.problem, none, queue, features, none, none, queue.row, None)
        of_last = (
            belief.num_updates(last),
            belief.optimistic_utilities(last, seen, alpha, normal),
            belief.optimistic_utilities(last, seen, alpha),
        )
    return belief.theta(states, contexts), *of_last


def variants():
    """Return each belief with what makes its loops and the platform that it is written for.

    Three rows a round are those of `running` and `pool`: with one block, a prior or contexts that
    are drawn, the same code adds three rows as two.
    """
    made = {}
    for size in (1, 2, 3):
        pooled = PROBLEM._replace(assortment_size=size)
        drawn = pooled._replace(pooled=False)
        shared = drawn._replace(parameters="shared")
        for name, platform in (("cpu", CPU), ("gpu", GPU)):
            made[f"running-{size}-{name}"] = (
                BlockBelief(pooled),
                (PagesByLoops, SERVERS, 1),
                platform,
            )
            made[f"pool-{size}-{name}"] = (
                TableBelief(pooled),
                (StepsByLoops, SERVERS, 1, size + 1),
                platform,
            )
            if size < 3:
                made[f"shared-{size}-{name}"] = BlockBelief(shared), (PagesByLoops, 1, 1), platform
        if size < 3:
            made[f"drawn-{size}-cpu"] = (
                TableBelief(drawn),
                (StepsByLoops, SERVERS, 3, size + 5),
                CPU,
            )
            made[f"warm-{size}-cpu"] = (
                TableBelief(pooled),
                (StepsByLoops, SERVERS, 1, size + 1),
                CPU,
            )
    exact = PROBLEM._replace(assortment_size=2)
    visits = 2 * -(-ROUNDS // PAGE)
    made["running-2-exact"] = (
        BlockBelief(exact, exact_steps=2),
        (PagesByLoops, SERVERS, visits),
        CPU,
    )
    for size in (2, 3):
        pooled = PROBLEM._replace(assortment_size=size)
        made[f"running-{size}-mixed"] = BlockBelief(pooled), (PagesByLoops, SERVERS, 1), CPU
        made[f"pool-{size}-mixed"] = TableBelief(pooled), (StepsByLoops, SERVERS, 1, size + 1), CPU
    shared = exact._replace(pooled=False, parameters="shared")
    made["shared-2-mixed"] = BlockBelief(shared), (PagesByLoops, 1, 1), CPU
    made["pool-2-exact"] = (
        TableBelief(exact, exact_steps=2),
        (StepsByLoops, SERVERS, 2, 2 * DIM),
        CPU,
    )
    return made


VARIANTS = variants()
# Each belief, and either platform; the others are combinations of them.
QUICK = {
    "shared-2-cpu", "pool-2-gpu", "drawn-1-cpu", "warm-1-cpu", "running-2-mixed", "pool-2-mixed"
}  # fmt: skip


@pytest.mark.parametrize("name", cases(VARIANTS, QUICK))
def test_beliefs_match_plain_loops_in_every_round(name, x64, monkeypatch):
    # So few rows that blocks have several pages, the history several blocks, an image some tiles.
    for module, constant, small in (
        (paged_history, "PAGE_ALONE", PAGE), (paged_history, "PAGE_COUPLED", PAGE),
        (table_history, "BLOCK", 5), (whitened_kernel, "TILE", 8), (whitened_kernel, "TILES", 2),
    ):  # fmt: skip
        monkeypatch.setattr(module, constant, small)
    belief, (loops, *numbers), platform = VARIANTS[name]
    plain, warm = loops(*numbers), name.startswith("warm")
    contexts, offset, interactions, rounds = feedback(belief.problem, name.endswith("mixed"))
    draw, blocks = np.random.default_rng(9), belief.problem.num_blocks
    normal, alpha = draw.normal(size=(3, blocks, DIM)), 0.1 + draw.random(blocks)
    theta, counts, sampled, bounded = learn_all(
        belief, platform, contexts, offset if warm else None, interactions, normal, alpha
    )
    for t, x, known, chosen, touched in rounds:
        plain.learn(x, warm * known, chosen, touched)
        found = np.asarray(theta[t]).ravel()
        np.testing.assert_allclose(found, plain.theta, rtol=0, atol=1e-12, err_msg=f"round {t + 1}")
    assert np.abs(plain.theta).max() > 0.1 and len(plain.rows) > 3 * PAGE
    np.testing.assert_array_equal(theta[4], theta[3])  # a round that teaches nothing
    np.testing.assert_array_equal(counts, plain.counts)
    estimates = plain.theta.reshape(-1, DIM)
    drawn = estimates + alpha[:, None] * np.einsum("bij,mbj->mbi", plain.root, normal)
    shared = belief.problem.parameters == "shared"
    for (slot, row), server in itertools.product(WAITING.items(), range(SERVERS)):
        x, b = (contexts[row, server], 0) if shared else (contexts[row], server)
        known, length = warm * offset[row, server], np.linalg.norm(plain.root[b].T @ x)
        best, bound = (drawn[:, b] @ x).max(), estimates[b] @ x + alpha[b] * length
        assert sampled[slot, server] == pytest.approx(known + best, abs=1e-6)
        assert bounded[slot, server] == pytest.approx(known + bound, abs=1e-6)
