"""The exact estimate of every round, the design matrices and the confidence radii."""

import math

import numpy as np

from tests.reference.choice import choice_probabilities
from tests.reference.records import (
    Assortment,
    Floats,
    Integers,
    Settings,
    Workload,
    padded,
)


class Estimator:
    """Keep the MLE, the design matrices and the confidence radii (Algorithms 1 and 2)."""

    def __init__(self, workload: Workload, settings: Settings) -> None:
        """Start with theta = 0 and V = lambda0 I in every block."""
        self.settings = settings
        servers, dimension = workload.utilities.shape[1], workload.features.shape[-1]
        shared = settings.parameters == "shared"
        # [I, N, d]: with disjoint parameters every server sees the same context.
        self.features = (
            workload.features if shared else np.stack([workload.features] * servers, axis=1)
        )
        self.block = [0] * servers if shared else list(range(servers))
        blocks = max(self.block) + 1
        self.theta = np.zeros((blocks, dimension))
        self.shown = np.zeros(blocks, dtype=int)
        self.design = np.stack([settings.lambda0 * np.eye(dimension)] * blocks)
        self.root = np.stack([np.eye(dimension) / math.sqrt(settings.lambda0)] * blocks)
        # One entry a round with feedback: features [K, d], blocks [K], choice indicators [K]; of a
        # place without a server -1 is the block.
        self.history: list[tuple[Floats, Integers, Floats]] = []

    def radius(self, b: int) -> float:
        """Return alpha of block b after the rounds (disjoint: the showings) it has seen."""
        s, d, count = self.settings, self.theta.shape[1], int(self.shown[b])
        growth = d * math.log(1 + count * s.K / (d * s.lambda0)) + 4 * math.log(max(count, 1))
        return s.alpha_scale * s.kappa * (math.sqrt(growth) / 2 + math.sqrt(s.lambda0))

    def samples(self, normal: Floats) -> Floats:
        """Return theta_hat + alpha W z [M, B, d] for standard normals z [M, B, d]."""
        samples = np.empty_like(normal)
        for i, b in np.ndindex(*normal.shape[:2]):
            samples[i, b] = self.theta[b] + self.radius(b) * (self.root[b] @ normal[i, b])
        return samples

    def sampled_utilities(self, row: int, samples: Floats) -> Floats:
        """Return max_i x_{-j}' theta_i [N] for parameter samples theta_i [M, B, d]."""
        values = [samples[:, b] @ self.features[row, j] for j, b in enumerate(self.block)]
        return np.max(values, axis=1)

    def upper_utilities(self, row: int) -> Floats:
        """Return x_{-j}' theta_hat + alpha ||x_{-j}||_{V^-1} [N]."""
        utilities = np.empty(len(self.block))
        for j, b in enumerate(self.block):
            x = self.features[row, j]
            utilities[j] = x @ self.theta[b] + self.radius(b) * np.linalg.norm(self.root[b].T @ x)
        return utilities

    def learn(self, row: int, servers: Assortment, choice: int) -> None:
        """Add one round's feedback, then update the blocks that it touched, and no other."""
        positions = padded(servers, self.settings.K)
        features = self.features[row, list(positions)]
        blocks = np.array([self.block[j] if j >= 0 else -1 for j in positions])
        chosen = np.array([float(j == choice and j >= 0) for j in positions])
        self.history.append((features, blocks, chosen))
        for x, j in zip(features, servers, strict=False):
            self._grow(self.block[j], x)
        touched = sorted({self.block[j] for j in servers})
        self.shown[touched] += 1
        self._fit(touched)

    def _grow(self, b: int, x: Floats) -> None:
        """Add x x' to V and keep W W' = V^-1: W <- W - ((1 - 1/sqrt(1+s))/s) (W w) w'."""
        w = self.root[b].T @ x
        r = math.sqrt(1 + w @ w)
        # The same factor as in the docstring, since s = (r - 1)(r + 1); no 0/0 at x = 0.
        self.root[b] -= np.outer(self.root[b] @ w, w) / (r * (r + 1))
        self.design[b] += np.outer(x, x)
        if self.settings.check:
            product = self.root[b] @ self.root[b].T @ self.design[b]
            assert np.allclose(product, np.eye(len(x)), rtol=0, atol=1e-8), "W W' V != I"

    def _fit(self, free: list[int]) -> None:
        """Solve grad L = 0 for the free blocks by damped Newton steps, the others held."""
        # A round that showed none of them adds a constant to L.
        rounds = [entry for entry in self.history if not set(free).isdisjoint(entry[1].tolist())]
        features, blocks, chosen = map(np.array, zip(*rounds, strict=True))
        # rows[i, k] is the derivative of utility (i, k) in the free parameters: its feature in
        # its own block's place, or nothing if its block is held (then it only adds an offset).
        own = (blocks[:, :, None] == np.array(free)).astype(float)
        rows = (own[..., None] * features[:, :, None, :]).reshape(*blocks.shape, -1)
        held = np.sum(features * self.theta[blocks], axis=-1) * (1 - own.sum(axis=-1))
        # No choice is as likely as one that is not there.
        held = np.where(blocks < 0, -np.inf, held)
        solution = minimise(rows, held, chosen, self.settings.lambda0, self.theta[free].ravel())
        self.theta[free] = solution.reshape(len(free), -1)


def gradient_and_hessian(
    rows: Floats, held: Floats, chosen: Floats, lambda0: float, parameters: Floats
) -> tuple[Floats, Floats]:
    """Return the gradient [D] and Hessian [D, D] of the regularised loss, equation (mle).

    Utilities are rows [n, K, D] @ parameters [D] + held [n, K]; chosen [n, K] is 0 or 1.
    """
    p = choice_probabilities(rows @ parameters + held)
    flat = rows.reshape(-1, len(parameters))
    gradient = lambda0 * parameters - (chosen - p).ravel() @ flat
    mean = (p[:, None] @ rows)[:, 0]
    second = flat.T @ (p.reshape(-1, 1) * flat)
    return gradient, lambda0 * np.eye(len(parameters)) + second - mean.T @ mean


def minimise(rows: Floats, held: Floats, chosen: Floats, lambda0: float, start: Floats) -> Floats:
    """Return the exact minimiser [D] of the regularised loss, by Newton steps from `start`.

    A step is halved until it shortens the gradient: the loss is strongly convex, so such steps
    reach the minimiser from anywhere.

    Raises:
        ArithmeticError: the gradient's norm stays above 1e-11.
    """
    parameters = start
    gradient, hessian = gradient_and_hessian(rows, held, chosen, lambda0, parameters)
    for _ in range(100):
        norm = np.linalg.norm(gradient)
        if norm < 1e-11:
            return parameters
        direction = -np.linalg.solve(hessian, gradient)
        for halvings in range(40):
            trial = parameters + direction / 2**halvings
            gradient, hessian = gradient_and_hessian(rows, held, chosen, lambda0, trial)
            if np.linalg.norm(gradient) <= (1 - 0.1 / 2**halvings) * norm:
                break
        parameters = trial
    raise ArithmeticError(f"Newton's method stopped at a gradient of norm {norm:.2e}.")
