"""What the reference is given and what it returns, one run each.

Axes: T rounds, I rows of the query table, N servers, d features, K assortment size, M samples,
B parameter blocks (N when every server has its own parameter, 1 when they share one).
"""

import dataclasses
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Assortment = tuple[int, ...]


def padded(servers: Assortment, size: int) -> Assortment:
    """Return the servers that were shown, then -1 up to K positions."""
    return (*servers, *(-1,) * (size - len(servers)))


@dataclasses.dataclass(frozen=True)
class Workload:
    """Hold one run's instance."""

    features: Floats  # disjoint: [I, d] context of a row; shared: [I, N, d] feature of server j
    utilities: Floats  # [I, N] true utility of server j for a row
    arrival_index: Integers  # [T] row of the query that arrives in round t, if one does
    scores: Floats | None = None  # [I, N] what a router predicts of the utilities
    # [T] how many arrive in round t, of the first rows of arrival_index [T, A]; None: one at most,
    # where its uniform is below the rate
    arrivals: Integers | None = None

    def arriving(self, t: int, uniform: float, rate: float) -> list[int]:
        """Return the rows of the queries that arrive in round t, in their order."""
        if self.arrivals is None:
            return [int(self.arrival_index[t - 1])] if uniform < rate else []
        return [int(row) for row in self.arrival_index[t - 1][: self.arrivals[t - 1]]]


@dataclasses.dataclass(frozen=True)
class Draws:
    """Hold one run's recorded randomness; entry t-1 belongs to round t."""

    arrival: Floats  # [T] uniform; A(t) = arrival < rate
    choice: Floats  # [T] uniform of the coupled choice
    explore: Floats  # [T] uniform that decides E(t-1), used in round t
    normal: Floats  # [T, M, B, d] standard normals
    query: Floats  # [T] uniform that picks a random waiting query
    assortment: Integers  # [T] rank in lexicographic order of a random assortment
    tie_breaks: Floats  # [T, N] uniforms that order the servers of a random fallback
    replacement: Floats  # [T, N] uniforms that order what replaces an assortment with one down
    # (t, a [N], b [N]) -> one Beta(a, b) draw a server [N], for Q-ThS in round t
    beta: Callable[[int, Floats, Floats], Floats] | None = None
    # [n, N] uniforms by which a server's answer pleases, whenever it is asked: of row n, or of the
    # query that arrived in round n + 1, as `kept_by` says; None: the round's own
    fixed_uniforms: Floats | None = None
    fixed_by: str = "attempt"  # or "prompt", "query"

    def uniform(self, t: int, query: "WaitingQuery", server: int) -> float:
        """Return the uniform of the choice in round t."""
        if self.fixed_uniforms is None:
            return float(self.choice[t - 1])
        number = query.row if self.fixed_by == "prompt" else query.arrival_round - 1
        return float(self.fixed_uniforms[number, server])


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
    window: int = 0  # W of acqb_windowed
    exploit_size: int = 1  # of acqb_mixed: how many servers it shows where it does not explore
    precision: float = 1.0  # s of the Beta distribution, where a query's own failures count
    recall_by: str = "row"  # or "embedding": rows of equal features are recalled as one
    check: bool = False


@dataclasses.dataclass(frozen=True)
class Trajectory:
    """Hold what one run did; entry t-1 belongs to round t."""

    query: Integers  # [T] arrival round of the served query; -1: the queue was empty
    assortment: Integers  # [T, K] server numbers, ascending, then -1 where fewer were shown or none
    choice: Integers  # [T] chosen server; -1: outside option or empty queue
    departed: npt.NDArray[np.bool_]  # [T]
    queue_length: Integers  # [T] Q(t+1)
    regret: Floats  # [T] R(x_t, S*(x_t)) - R(x_t, S_t)
    explored: npt.NDArray[np.bool_]  # [T]
    theta: Floats  # [T, B, d] estimates after the round; zeros where a policy has none


@dataclasses.dataclass
class WaitingQuery:
    """Hold one waiting query."""

    arrival_round: int
    row: int
    shown: list[int]  # [N] how often each server was shown for it
    served: int = 0
