"""A plain NumPy float64 simulator of CQB-MNL and its online policies: the oracle of the tests.

Written from the paper's text alone and fed recorded draws, so that another simulator can be
compared with it decision for decision. Loops and enumeration: obvious, not fast.

Axes: T rounds, I rows of the query table, N servers, d features, K assortment size, M samples,
B parameter blocks (N when every server has its own parameter, 1 when they share one).
"""

import dataclasses
import itertools
import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Assortment = tuple[int, ...]

BASELINE_POLICIES = ("optimal", "random", "rand_rout", "rand_rout_fallback", "q_ucb", "q_ths")
# What routers do with a retry, and how they schedule.
ROUTED = {
    "routed": ("same", "oldest"),
    "routed_priority": ("same", "joint"),
    "routed_fallback": ("fallback", "oldest"),
    "routed_fallback_rr": ("fallback", "least_served"),
    "routed_fallback_priority": ("fallback", "joint"),
    "routed_posterior_priority": ("posterior", "joint"),
    "routed_recall_priority": ("recall", "joint"),
}
RULES = {"fifo": "oldest", "lifo": "newest", "rr": "least_served", "random": "uniform"}
# How a variant of ACQB picks its query, in exploitation rounds or in exploration rounds.
EXPLOIT_QUERY = {f"acqb_{name}": RULES[name] for name in ("fifo", "rr", "random")}
EXPLORE_QUERY = {f"acqb_explore_{name}": rule for name, rule in RULES.items()}
RETRIES = {f"acqb_{retry}": retry for retry in ("fallback", "posterior", "recall")}
ACQB = ("acqb", "acqb_ucb", *RETRIES, *EXPLOIT_QUERY, *EXPLORE_QUERY)
POLICIES = (*BASELINE_POLICIES, *ROUTED, "cqb_eps", *ACQB)


@dataclasses.dataclass(frozen=True)
class World:
    """Hold one run's instance."""

    features: Floats  # disjoint: [I, d] context of a row; shared: [I, N, d] feature of server j
    utilities: Floats  # [I, N] true utility of server j for a row
    arrival_index: Integers  # [T] row of the query that arrives in round t, if one does
    scores: Floats | None = None  # [I, N] what a router predicts of the utilities


@dataclasses.dataclass(frozen=True)
class Draws:
    """Hold one run's recorded randomness; entry t-1 belongs to round t."""

    arrival: Floats  # [T] uniform; A(t) = arrival < rate
    choice: Floats  # [T] uniform of the coupled choice
    explore: Floats  # [T] uniform that decides E(t-1), used in round t
    normal: Floats  # [T, M, B, d] standard normals
    query: Floats  # [T] uniform that picks a random waiting query
    assortment: Integers  # [T] rank in lexicographic order of a random assortment
    lots: Floats  # [T, N] uniforms that order the servers of a random fallback
    # (t, a [N], b [N]) -> one Beta(a, b) draw a server [N], for Q-ThS in round t
    beta: Callable[[int, Floats, Floats], Floats] | None = None


@dataclasses.dataclass(frozen=True)
class Settings:
    """Hold the numbers of one run; `check` asserts W W' V = I after every update."""

    K: int
    parameters: str  # "disjoint" or "shared"
    arrival_rate: float
    horizon: int
    kappa: float = 1.0
    lambda0: float = 1.0
    alpha_scale: float = 1.0
    c1: float = 1.0
    explore_rounds: int = 0  # tau of cqb_eps
    precision: float = 1.0  # s of the Beta distribution, where a query's own failures count
    check: bool = False


@dataclasses.dataclass(frozen=True)
class Trajectory:
    """Hold what one run did; entry t-1 belongs to round t."""

    query: Integers  # [T] arrival round of the served query; -1: the queue was empty
    assortment: Integers  # [T, K] server numbers, ascending; -1: the queue was empty
    choice: Integers  # [T] chosen server; -1: outside option or empty queue
    departed: npt.NDArray[np.bool_]  # [T]
    queue_length: Integers  # [T] Q(t+1)
    regret: Floats  # [T] R(x_t, S*(x_t)) - R(x_t, S_t)
    explored: npt.NDArray[np.bool_]  # [T]
    theta: Floats  # [T, B, d] estimates after the round; zeros where a policy has none


@dataclasses.dataclass
class Waiting:
    """Hold one waiting query."""

    arrival_round: int
    row: int
    shown: list[int]  # [N] how often each server was shown for it
    served: int = 0


def choice_probabilities(utilities: Floats) -> Floats:
    """Return p_j [..., K] of the MNL model for utilities [..., K]; p_0 is what is left."""
    shift = np.maximum(0.0, np.max(utilities, axis=-1, keepdims=True))
    weights = np.exp(utilities - shift)
    return weights / (np.exp(-shift) + np.sum(weights, axis=-1, keepdims=True))


def departure_rate(utilities: Floats, servers: Assortment) -> float:
    """Return R, the probability that an assortment satisfies the user, for utilities [N]."""
    return float(np.sum(choice_probabilities(utilities[list(servers)])))


def best_assortment(utilities: Floats, size: int) -> tuple[Assortment, float]:
    """Return the first K-subset in lexicographic order with the largest R, and its log-odds.

    log(R / (1 - R)) = log(sum of exp(u)) orders like R but does not saturate at 1; where rounding
    hides the smaller terms of the sum, they decide one by one, as in exact arithmetic.
    """

    def value(servers: Assortment) -> tuple[float, list[float]]:
        chosen = sorted(utilities[list(servers)].tolist(), reverse=True)
        return chosen[0] + math.log(math.fsum(math.exp(u - chosen[0]) for u in chosen)), chosen

    best = max(itertools.combinations(range(len(utilities)), size), key=value)
    return best, value(best)[0]


def best_pair(waiting: list[Waiting], utilities: list[Floats], k: int) -> tuple[int, Assortment]:
    """Return the index in `waiting` and the assortment of largest R; ties: the lowest slot."""
    candidates = [best_assortment(values, k) for values in utilities]
    winner = max(range(len(waiting)), key=lambda index: candidates[index][1])
    return winner, candidates[winner][0]


def next_assortment(utilities: Floats, shown: list[int], size: int) -> Assortment:
    """Return the K servers shown least often, the best of them first where not all can be had."""
    order = sorted(range(len(utilities)), key=lambda j: (shown[j], -utilities[j]))
    return tuple(sorted(order[:size]))


class Tally:
    """Count what became of every row's attempts."""

    def __init__(self, world: World) -> None:
        """Start at nothing."""
        self.accepted = np.zeros(world.utilities.shape)
        self.failed = np.zeros(world.utilities.shape)

    def learn(self, row: int, servers: Assortment, choice: int) -> None:
        """Count one round; where another server was chosen it tells nothing of the rest."""
        if choice >= 0:
            self.accepted[row, choice] += 1
        else:
            self.failed[row, list(servers)] += 1


def beta_log_odds(utilities: Floats, accepted: Floats, failed: Floats, precision: float) -> Floats:
    """Return the log-odds [N] of a Beta distribution's mean after acceptances and failures."""
    mean = 1 / (1 + np.exp(-utilities))
    return np.log((mean * precision + accepted) / ((1 - mean) * precision + failed))


def revise(retry: str, query: Waiting, utilities: Floats, tally: Tally, precision: float) -> Floats:
    """Return the utilities [N] of a query, given what its own or its row's attempts showed."""
    if retry == "posterior":
        failed = np.array(query.shown, float)
        return beta_log_odds(utilities, np.zeros_like(failed), failed, precision)
    if retry == "recall":
        counts = tally.accepted[query.row], tally.failed[query.row]
        return beta_log_odds(utilities, *counts, precision)
    return utilities


def answer(
    retry: str, rule: str, waiting: list[Waiting], utilities: list[Floats], uniform: float,
    settings: Settings, tally: Tally,
) -> tuple[Waiting, Assortment]:  # fmt: skip
    """Return the query that a rule picks and its assortment, given what a retry changes."""
    utilities = [
        revise(retry, query, u, tally, settings.precision)
        for query, u in zip(waiting, utilities, strict=True)
    ]
    if rule != "joint":
        query = pick_query(rule, waiting, uniform)
        index = next(i for i, one in enumerate(waiting) if one is query)
        waiting, utilities = [query], [utilities[index]]
    if retry != "fallback":
        index, servers = best_pair(waiting, utilities, settings.K)
        return waiting[index], servers
    choices = [
        next_assortment(u, query.shown, settings.K)
        for u, query in zip(utilities, waiting, strict=True)
    ]
    odds = [math.fsum(math.exp(u[j]) for j in s) for u, s in zip(utilities, choices, strict=True)]
    index = int(np.argmax(odds))
    return waiting[index], choices[index]


class RoutedPolicy:
    """Act as a router trained beforehand, by its predictions of a row's utilities."""

    def __init__(self, label: str, world: World, draws: Draws, settings: Settings) -> None:
        """Start with nothing to recall."""
        self.retry, self.rule = ROUTED[label]
        self.world, self.draws, self.settings = world, draws, settings
        self.tally = Tally(world)
        self.learn = self.tally.learn

    def select(self, t: int, waiting: list[Waiting]) -> tuple[Waiting, Assortment, bool]:
        """Return the query, the assortment and that the round does not explore."""
        assert self.world.scores is not None
        scores = [self.world.scores[query.row] for query in waiting]
        uniform = self.draws.query[t - 1]
        query, servers = answer(
            self.retry, self.rule, waiting, scores, uniform, self.settings, self.tally
        )
        return query, servers, False


def pick_query(rule: str, waiting: list[Waiting], uniform: float) -> Waiting:
    """Return the query that a scheduling rule serves; `waiting` is in slot order."""
    if rule == "oldest":
        return min(waiting, key=lambda query: query.arrival_round)
    if rule == "newest":
        return max(waiting, key=lambda query: query.arrival_round)
    if rule == "least_served":
        fewest = min(query.served for query in waiting)
        waiting = [query for query in waiting if query.served == fewest]
    return waiting[min(int(uniform * len(waiting)), len(waiting) - 1)]


class BaselinePolicy:
    """Act as optimal, random, rand_rout, Q-UCB or Q-ThS (appendix, "Baseline algorithms")."""

    def __init__(self, label: str, world: World, draws: Draws, settings: Settings) -> None:
        """Start with no server played."""
        self.label, self.world, self.draws, self.settings = label, world, draws, settings
        servers = world.utilities.shape[1]
        self.assortments = list(itertools.combinations(range(servers), settings.K))
        self.successes, self.plays = np.zeros(servers), np.zeros(servers)

    def select(self, t: int, waiting: list[Waiting]) -> tuple[Waiting, Assortment, bool]:
        """Return the query, the assortment and whether the round explores."""
        if self.label == "optimal":
            utilities = [self.world.utilities[query.row] for query in waiting]
            index, servers = best_pair(waiting, utilities, self.settings.K)
            return waiting[index], servers, False
        rule = "uniform" if self.label == "random" else "oldest"
        query = pick_query(rule, waiting, self.draws.query[t - 1])
        if self.label == "rand_rout_fallback":
            lots = self.draws.lots[t - 1]
            return query, next_assortment(lots, query.shown, self.settings.K), False
        probability = min(1.0, 3 * len(self.plays) * math.log(t) ** 2 / t)
        explored = self.label.startswith("q_") and bool(self.draws.explore[t - 1] < probability)
        if explored or not self.label.startswith("q_"):
            return query, self.assortments[self.draws.assortment[t - 1]], explored
        return query, (int(np.argmax(self.arm_indices(t))),), False

    def arm_indices(self, t: int) -> Floats:
        """Return the upper confidence bound (Q-UCB) or the Beta draw (Q-ThS) of a server [N]."""
        if self.label == "q_ths" and self.draws.beta is not None:
            return self.draws.beta(t, self.successes + 1, self.plays - self.successes + 1)
        indices = np.full(len(self.plays), np.inf)
        for j in np.flatnonzero(self.plays):
            bonus = math.sqrt(math.log(t) ** 2 / (2 * self.plays[j]))
            indices[j] = self.successes[j] / self.plays[j] + bonus
        return indices

    def learn(self, row: int, servers: Assortment, choice: int) -> None:
        """Count the showings and the choice (-1: the outside option)."""
        self.plays[list(servers)] += 1
        self.successes[list(servers)] += np.array(servers) == choice


class Estimator:
    """Keep the MLE, the design matrices and the confidence radii (Algorithms 1 and 2)."""

    def __init__(self, world: World, settings: Settings) -> None:
        """Start with theta = 0 and V = lambda0 I in every block."""
        self.settings = settings
        servers, dimension = world.utilities.shape[1], world.features.shape[-1]
        shared = settings.parameters == "shared"
        # [I, N, d]: with disjoint parameters every server sees the same context.
        self.features = world.features if shared else np.stack([world.features] * servers, axis=1)
        self.block = [0] * servers if shared else list(range(servers))
        blocks = max(self.block) + 1
        self.theta = np.zeros((blocks, dimension))
        self.shown = np.zeros(blocks, dtype=int)
        self.design = np.stack([settings.lambda0 * np.eye(dimension)] * blocks)
        self.root = np.stack([np.eye(dimension) / math.sqrt(settings.lambda0)] * blocks)
        # One entry a round with feedback: features [K, d], blocks [K], choice indicators [K].
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
        features = self.features[row, list(servers)]
        blocks = np.array([self.block[j] for j in servers])
        self.history.append((features, blocks, np.array([float(j == choice) for j in servers])))
        for x, b in zip(features, blocks, strict=True):
            self._grow(int(b), x)
        touched = sorted({int(b) for b in blocks})
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
        features, blocks, chosen = map(np.stack, zip(*self.history, strict=True))
        # rows[i, k] is the derivative of utility (i, k) in the free parameters: its feature in
        # its own block's place, or nothing if its block is held (then it only adds an offset).
        own = (blocks[:, :, None] == np.array(free)).astype(float)
        rows = (own[..., None] * features[:, :, None, :]).reshape(*blocks.shape, -1)
        held = np.sum(features * self.theta[blocks], axis=-1) * (1 - own.sum(axis=-1))
        solution = minimise(rows, held, chosen, self.settings.lambda0, self.theta[free].ravel())
        self.theta[free] = solution.reshape(len(free), -1)


def gradient_and_hessian(
    rows: Floats, held: Floats, chosen: Floats, lambda0: float, parameters: Floats
) -> tuple[Floats, Floats]:
    """Return the gradient [D] and Hessian [D, D] of the regularised loss, equation (mle).

    Utilities are rows [n, K, D] @ parameters [D] + held [n, K]; chosen [n, K] is 0 or 1.
    """
    utilities = rows @ parameters + held
    p = choice_probabilities(utilities)
    gradient = lambda0 * parameters - np.einsum("nk,nkd->d", chosen - p, rows)
    mean = np.einsum("nk,nkd->nd", p, rows)
    second = np.einsum("nk,nkd,nke->de", p, rows, rows, optimize=True)
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


class OptimisticPolicy:
    """Act as ACQB (Algorithms 1 and 2), CQB-eps, or a variant of ACQB in one of its parts."""

    def __init__(self, label: str, world: World, draws: Draws, settings: Settings) -> None:
        """Start with theta = 0 and the round-robin counter at 0."""
        self.label, self.draws, self.settings = label, draws, settings
        self.estimator, self.tally = Estimator(world, settings), Tally(world)
        self.assortments = list(itertools.combinations(range(world.utilities.shape[1]), settings.K))
        self.counter = 0

    def explores(self, t: int) -> bool:
        """Return whether round t explores: E(t-1)=1 and, but for the variants, A(t-1)=1."""
        probability = min(1.0, self.settings.c1 * t**-0.5)
        if self.label == "cqb_eps":
            probability = 1.0 if t <= self.settings.explore_rounds else self.settings.horizon**-0.5
        arrived = t > 1 and self.draws.arrival[t - 2] < self.settings.arrival_rate
        triggered = bool(self.draws.explore[t - 1] < probability)
        return triggered and (self.label in EXPLORE_QUERY or bool(arrived))

    def select(self, t: int, waiting: list[Waiting]) -> tuple[Waiting, Assortment, bool]:
        """Return the query, the assortment and whether the round explores."""
        uniform = self.draws.query[t - 1]
        if self.explores(t):
            # On arrivals the newest query is the one that arrived in round t-1.
            query = pick_query(EXPLORE_QUERY.get(self.label, "newest"), waiting, uniform)
            servers = self.assortments[self.counter]
            self.counter = (self.counter + 1) % len(self.assortments)
            return query, servers, True
        rows = [query.row for query in waiting]
        if self.label == "acqb_ucb":
            utilities = [self.estimator.upper_utilities(row) for row in rows]
        else:
            samples = self.estimator.samples(self.draws.normal[t - 1])
            utilities = [self.estimator.sampled_utilities(row, samples) for row in rows]
        rule, retry = EXPLOIT_QUERY.get(self.label, "joint"), RETRIES.get(self.label, "same")
        query, servers = answer(retry, rule, waiting, utilities, uniform, self.settings, self.tally)
        return query, servers, False

    def learn(self, row: int, servers: Assortment, choice: int) -> None:
        """Update the estimate, and what is recalled of the row."""
        self.estimator.learn(row, servers, choice)
        self.tally.learn(row, servers, choice)


def make_policy(
    label: str, world: World, draws: Draws, settings: Settings
) -> BaselinePolicy | RoutedPolicy | OptimisticPolicy:
    """Return the policy of a label, before its first round, or raise as `simulate` says."""
    if label not in POLICIES:
        raise ValueError(f"Unknown policy {label!r}: allowed are {', '.join(POLICIES)}.")
    if world.features.ndim != {"disjoint": 2, "shared": 3}.get(settings.parameters):
        raise ValueError("parameters must be disjoint (features [I, d]) or shared ([I, N, d]).")
    if len(draws.arrival) != settings.horizon:
        raise ValueError(f"draws hold {len(draws.arrival)} rounds, not {settings.horizon}.")
    if label in ("q_ucb", "q_ths") and settings.K != 1:
        raise ValueError(f"{label} is defined for K=1 only, not K={settings.K}.")
    if label == "q_ths" and draws.beta is None:
        raise ValueError("q_ths needs draws.beta, which is None.")
    if label in ROUTED:
        if world.scores is None:
            raise ValueError(f"{label} needs world.scores, which is None.")
        return RoutedPolicy(label, world, draws, settings)
    if label in BASELINE_POLICIES:
        return BaselinePolicy(label, world, draws, settings)
    return OptimisticPolicy(label, world, draws, settings)


def choose(servers: Assortment, utilities: Floats, uniform: float) -> int:
    """Return the server whose stretch of the cumulative p_j holds the uniform, -1 for none."""
    cumulative = 0.0
    for server, p in zip(servers, choice_probabilities(utilities), strict=True):
        cumulative += p
        if uniform <= cumulative:
            return server
    return -1


def simulate(policy: str, world: World, draws: Draws, settings: Settings) -> Trajectory:
    """Play one policy for T rounds on recorded draws (section 2 and Algorithms 1 and 2).

    Raises:
        ValueError: the policy is unknown, or does not fit the settings, the world or the draws.
    """
    agent = make_policy(policy, world, draws, settings)
    theta = Estimator(world, settings).theta
    slots: list[Waiting | None] = []
    records = []  # one a round, in the order of Trajectory's fields
    for t in range(1, settings.horizon + 1):
        waiting = [query for query in slots if query is not None]
        served, servers, chosen, regret, explored = -1, (-1,) * settings.K, -1, 0.0, False
        if waiting:
            query, servers, explored = agent.select(t, waiting)
            utilities = world.utilities[query.row]
            chosen = choose(servers, utilities[list(servers)], draws.choice[t - 1])
            served = query.arrival_round
            query.served += 1
            for j in servers:
                query.shown[j] += 1
            if chosen >= 0:
                slots[slots.index(query)] = None
            agent.learn(query.row, servers, chosen)
            best, _ = best_assortment(utilities, settings.K)
            regret = departure_rate(utilities, best) - departure_rate(utilities, servers)
        if draws.arrival[t - 1] < settings.arrival_rate:
            if None not in slots:
                slots.append(None)
            row, shown = int(world.arrival_index[t - 1]), [0] * world.utilities.shape[1]
            slots[slots.index(None)] = Waiting(t, row, shown)
        length = sum(query is not None for query in slots)
        if isinstance(agent, OptimisticPolicy):
            theta = agent.estimator.theta.copy()
        records.append((served, servers, chosen, chosen >= 0, length, regret, explored, theta))
    return Trajectory(*(np.array(column) for column in zip(*records, strict=True)))
