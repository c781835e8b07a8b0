"""One run's instance as a source draws it, fixed before its first round."""

from typing import NamedTuple

from jax import Array


class Logged(NamedTuple):
    """What users did, where a log says it: nothing is drawn from the choice model.

    Attributes:
        satisfied: [I] bool whether the first answer to a row satisfies its user.
        next: [I] int32 the row that the query becomes where it does not: what the user asks next.
    """

    satisfied: Array
    next: Array


class Drift(NamedTuple):
    """How tastes change, for queries that wait already too.

    In round t a row's utilities are cos_t u + sin_t v, v being `other`.

    Attributes:
        other: [I, N] v, the utilities at a right angle.
        cos: [T] of the angle.
        sin: [T] of the angle.
    """

    other: Array
    cos: Array
    sin: Array


class Billed(NamedTuple):
    """What a table knows of its answers beside how they please; policies never see it.

    Attributes:
        dollars: [I, N] what an answer costs, USD.
        scores: [I, N] its graded quality.
    """

    dollars: Array
    scores: Array


class World(NamedTuple):
    """One run's instance, fixed before its first round.

    Attributes:
        contexts: [I, d] (disjoint) or [I, N, d] (shared) features of each table row.
        utilities: [I, N] true utilities x' theta*_j (or x_{-j}' theta*): hidden from policies.
        arrival_rows: [T] int32 table row of the query that arrives in round t, if one arrives;
            [T, A] of those that do, in their order, where A > 1.
        prompts: [I] int32 the dataset's own number of each row (the row itself if it has none).
        logged: what users did where a log says it; None: they choose by the model. Utilities are
            then whatever ranks queries for the optimal policy.
        drift: how tastes change; None: never.
        billed: costs and scores of answers; None where the source knows none.
    """

    contexts: Array
    utilities: Array
    arrival_rows: Array
    prompts: Array
    logged: Logged | None = None
    drift: Drift | None = None
    billed: Billed | None = None
