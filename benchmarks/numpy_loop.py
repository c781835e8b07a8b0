"""ACQB (Algorithm 2) in plain NumPy, one run in a Python loop: the batched simulator's baseline.

As fast as a loop can be without changing the algorithm: a rank-one root of V^-1, a queue scored by
one product, Newton's method started from the last estimate and on the rows of the offered blocks
alone. Float64, one thread. The tests compare it with the independent reference.
"""

import itertools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from cqbjax.core import rng, simulate
from cqbjax.core.types import Source
from cqbjax.estimation import gaussian
from tests import reference

Floats = npt.NDArray[np.float64]
TOLERANCE = 1e-6  # the gradient's norm at which the estimate counts as exact


class Run(NamedTuple):
    """One run's instance, its draws and the policy's constants, as the reference takes them."""

    instance: reference.Workload
    draws: reference.Draws
    settings: reference.Settings


class Played(NamedTuple):
    """The decisions of one run, each [T]; -1 in a round with an empty queue.

    Attributes:
        query: arrival round of the served query.
        servers: [T, K].
        departed: whether the query left.
        length: Q(t+1).
    """

    query: npt.NDArray[np.int64]
    servers: npt.NDArray[np.int64]
    departed: npt.NDArray[np.bool_]
    length: npt.NDArray[np.int64]


def record(
    source: Source, size: int, rate: float, horizon: int, seed: int = 0, **constants: float
) -> Run:
    """Draw the instance as the simulator does, and the policy's own draws with NumPy.

    Args:
        source: with disjoint parameters.
        size: K.
        rate: arrivals a round.
        horizon: T.
        seed: of the run.
        constants: of the policy, in place of the benchmark's.
    """
    problem = source.problem(size, horizon)
    draw = jax.jit(simulate.draw_instance, static_argnames="problem")
    drawn = draw(rng.run_key(seed), jax.tree.map(jnp.asarray, source), jnp.asarray(rate), problem)
    own, servers = np.random.default_rng(seed), problem.num_servers
    workload = drawn.workload
    contexts, utilities = (np.asarray(x, float) for x in (workload.contexts, workload.utilities))
    instance = reference.Workload(contexts, utilities, np.asarray(workload.arrival_rows, np.int64))
    # Draws that ACQB does not use are zero.
    draws = reference.Draws(
        arrival=np.where(drawn.arrivals, 0.0, 1.0),
        choice=np.asarray(drawn.choice_uniforms, np.float64),
        explore=own.uniform(size=horizon),
        normal=own.normal(size=(horizon, gaussian.num_samples(size), servers, problem.dim)),
        query=np.zeros(horizon), assortment=np.zeros(horizon, int),
        tie_breaks=np.zeros((horizon, servers)), replacement=np.zeros((horizon, servers)),
    )  # fmt: skip
    usual: dict[str, Any] = {"alpha_scale": 0.2, "c1": 0.25} | constants
    return Run(instance, draws, reference.Settings(size, "disjoint", 0.5, horizon, **usual))


class Learner:
    """theta, the root of V^-1 and the history of every server."""

    def __init__(self, instance: reference.Workload, settings: reference.Settings) -> None:
        servers, dim = instance.utilities.shape[1], instance.features.shape[1]
        horizon = settings.horizon
        self.settings = settings
        self.theta = np.zeros((servers, dim))
        self.root = np.tile(np.eye(dim) / math.sqrt(settings.lambda0), (servers, 1, 1))
        self.shown = np.zeros(servers)
        self.features = np.empty((horizon, dim))
        self.servers = np.empty((horizon, settings.K), int)
        self.chosen = np.empty(horizon, int)
        self.rounds: list[list[int]] = [[] for _ in range(servers)]
        self.count = 0

    def samples(self, normal: Floats) -> Floats:
        """Return theta + alpha W z of every server: [N, d, M] for normals [M, N, d]."""
        s, dim, shown = self.settings, self.theta.shape[1], self.shown
        growth = dim * np.log1p(shown * s.K / (dim * s.lambda0))
        growth += 4 * np.log(np.maximum(shown, 1))
        alpha = s.alpha_scale * s.kappa * (np.sqrt(growth) / 2 + math.sqrt(s.lambda0))
        deviations = self.root @ normal.transpose(1, 2, 0)
        return self.theta[:, :, None] + alpha[:, None, None] * deviations

    def learn(self, x: Floats, servers: npt.NDArray[np.int64], chosen: int) -> None:
        """Add one round: V of the offered servers by rank one, their theta by Newton's method."""
        for j in servers:
            w = self.root[j].T @ x
            r = math.sqrt(1 + w @ w)
            self.root[j] -= np.outer(self.root[j] @ (w / (r * (r + 1))), w)
            self.rounds[j].append(self.count)
        self.features[self.count], self.servers[self.count] = x, servers
        self.chosen[self.count] = chosen
        self.shown[servers] += 1
        self.count += 1
        self._fit(servers)

    def _fit(self, free: npt.NDArray[np.int64]) -> None:
        """Minimise the regularised loss over the free servers' theta, with the others fixed."""
        rows: Any = self.rounds[free[0]]
        if len(free) > 1:
            rows = sorted(set(itertools.chain.from_iterable(self.rounds[j] for j in free)))
        x, shown, dim = self.features[rows], self.servers[rows], self.theta.shape[1]
        own = shown[:, :, None] == free
        chosen = self.chosen[rows][:, None] == free
        for _ in range(50):
            utilities = np.einsum("nd,nkd->nk", x, self.theta[shown])
            shift = np.maximum(utilities.max(axis=1, keepdims=True), 0)
            weights = np.exp(utilities - shift)
            weights /= np.exp(-shift) + weights.sum(axis=1, keepdims=True)
            p = np.einsum("nk,nkf->nf", weights, own)
            gradient = self.settings.lambda0 * self.theta[free] - (chosen - p).T @ x
            if np.sqrt(np.sum(gradient**2)) < TOLERANCE:
                return
            hessian = self.settings.lambda0 * np.eye(len(free) * dim)
            for i, k in itertools.product(range(len(free)), repeat=2):
                curvature = p[:, i] * ((i == k) - p[:, k])
                block = (x * curvature[:, None]).T @ x
                hessian[i * dim : (i + 1) * dim, k * dim : (k + 1) * dim] += block
            step = np.linalg.solve(hessian, gradient.ravel())
            self.theta[free] -= step.reshape(len(free), dim)
        raise ArithmeticError("Newton's method did not reach the minimiser in 50 steps")


def best_pair(utilities: Floats, size: int) -> tuple[int, npt.NDArray[np.int64]]:
    """Return the waiting query and the servers of the largest departure rate, of [Q, N]."""
    if size == 1:
        slot, server = divmod(int(np.argmax(utilities)), utilities.shape[1])
        return slot, np.array([server])
    top = np.argsort(-utilities, axis=1, kind="stable")[:, :size]
    values = np.take_along_axis(utilities, top, axis=1)
    scores = values[:, 0] + np.log(np.exp(values - values[:, :1]).sum(axis=1))
    slot = int(np.argmax(scores))
    return slot, np.sort(top[slot])


def play(
    instance: reference.Workload, draws: reference.Draws, settings: reference.Settings
) -> tuple[Played, Learner]:
    """Play every round and return the decisions, and the learner."""
    size, learner = settings.K, Learner(instance, settings)
    every_server = range(instance.utilities.shape[1])
    assortments = np.array(list(itertools.combinations(every_server, size)), dtype=int)
    arrives = draws.arrival < settings.arrival_rate
    turn, waiting, arrived = 0, list[int](), list[int]()
    rounds: list[tuple[int, Any, bool, int]] = []
    for t in range(1, settings.horizon + 1):
        query, servers, departed = -1, np.full(size, -1), False
        if waiting:
            new = t > 1 and arrives[t - 2]
            if new and draws.explore[t - 1] < min(1.0, settings.c1 / math.sqrt(t)):
                slot, servers = len(waiting) - 1, assortments[turn]
                turn = (turn + 1) % len(assortments)
            else:
                samples = learner.samples(draws.normal[t - 1])
                features = instance.features[waiting]
                optimistic = np.tensordot(features, samples, (1, 1)).max(axis=-1)
                slot, servers = best_pair(optimistic, size)
            row, query = waiting[slot], arrived[slot]
            weights = np.exp(instance.utilities[row, servers])
            reached = np.cumsum(weights / (1 + weights.sum()))
            position = int(np.searchsorted(reached, draws.choice[t - 1]))
            departed = position < size
            if departed:
                del waiting[slot], arrived[slot]
            learner.learn(instance.features[row], servers, servers[position] if departed else -1)
        if arrives[t - 1]:
            waiting.append(int(instance.arrival_index[t - 1]))
            arrived.append(t)
        rounds.append((query, servers, departed, len(waiting)))
    return Played(*(np.array(column) for column in zip(*rounds, strict=True))), learner
