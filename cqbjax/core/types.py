"""The contract between simulator, sources and policies.

Axis letters, used in every docstring of the package:

    T  rounds of the horizon             N  servers (LLMs)
    C  slots of the queue (capacity)     K  servers in an assortment
    A  most queries that come in a round
    I  rows of a run's context table     d  dimension of a feature vector
    M  Thompson samples                  B  parameter blocks: N if disjoint, 1 if shared
    S  seeds                             R  recorded rounds
    c  service channels: queries served at a time
"""

from typing import Any, Literal, NamedTuple, Protocol, TypeGuard

import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax.core.rng import RunLength


class LoggedOutcomes(NamedTuple):
    """What users did, where a log says it: nothing is drawn from the choice model.

    Attributes:
        satisfied: [I] bool whether the first answer to a row satisfies its user.
        next: [I] int32 the row that the query becomes where it does not: what the user asks next.
    """

    satisfied: Array
    next: Array


class PreferenceDrift(NamedTuple):
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


class AnswerCosts(NamedTuple):
    """What a table knows of its answers beside how they please; policies never see it.

    Attributes:
        dollars: [I, N] what an answer costs, USD.
        scores: [I, N] its graded quality.
    """

    dollars: Array
    scores: Array


class Workload(NamedTuple):
    """One run's instance, fixed before its first round.

    Attributes:
        contexts: [I, d] (disjoint) or [I, N, d] (shared) features of each table row.
        utilities: [I, N] true utilities x' theta*_j (or x_{-j}' theta*): hidden from policies.
        arrival_rows: [T] int32 table row of the query that arrives in round t, if one arrives;
            [T, A] of those that do, in their order, where A > 1.
        prompts: [I] int32 the dataset's own number of each row (the row itself if it has none).
        log: what users did where a log says it; None: they choose by the model. Utilities are
            then whatever ranks queries for the optimal policy.
        drift: how tastes change; None: never.
        answer_costs: costs and scores of answers; None where the source knows none.
    """

    contexts: Array
    utilities: Array
    arrival_rows: Array
    prompts: Array
    log: LoggedOutcomes | None = None
    drift: PreferenceDrift | None = None
    answer_costs: AnswerCosts | None = None


Parameters = Literal["disjoint", "shared"]
# By whom what a server's answer is worth to a user is drawn: every attempt, the query, the prompt.
Outcome = Literal["attempt", "query", "prompt"]
# Rounds of waiting whose logarithm counts as one.
LONG_WAIT = 1e5
# The utility of a server that does not answer: no weight beside the outside option's, in any sum.
DOWN_UTILITY = -1e4
# In place of a server that was not shown.
NO_SERVER = -1


class Problem(NamedTuple):
    """What fixes shapes: known before anything is compiled, hashable, never traced.

    Attributes:
        num_servers: N.
        assortment_size: K, with 1 <= K <= N.
        dim: d.
        num_rows: I, rows of the context table of one run.
        horizon: T, rounds.
        parameters: `disjoint` (Algorithm 2: one theta_j a server, contexts [I, d]) or `shared`
            (Algorithm 1: one theta, features [I, N, d]).
        pooled: whether a table row can arrive more than once (a pool of prompts).
        num_prompts: P, prompts of the dataset behind the pool; 0 where there is none.
        policy_contexts: whether a policy maps the source's contexts to others, as ACQB-CL does.
        max_arrivals: A, how many queries may arrive in a round; 1 is the paper's.
        channels: c, how many queries are served at a time; 1 is the paper's.
        has_costs: whether the source knows what answers cost, and their scores.
        outcome: what a user's verdict on a server is drawn for: each `attempt` (the paper); the
            `query`, so that a server that failed it fails it for good; or the `prompt`, for
            whoever asks it. The last two are of K = 1.
        outages: whether some servers may not answer in a round (`Observation.available`).
        age_column: the feature that grows while a query waits, or None: the table's number there is
            multiplied by min(1, log(1 + w) / log(1 + `LONG_WAIT`)) in the w-th round of waiting.
    """

    num_servers: int
    assortment_size: int
    dim: int
    num_rows: int
    horizon: int
    parameters: Parameters
    pooled: bool
    num_prompts: int = 0
    policy_contexts: bool = False
    max_arrivals: int = 1
    age_column: int | None = None
    channels: int = 1
    has_costs: bool = False
    outcome: Outcome = "attempt"
    outages: bool = False

    @property
    def attempts(self) -> int:
        """T c, how many attempts there may be: what is learnt from has room for as many."""
        return self.horizon * self.channels

    @property
    def max_queries(self) -> int:
        """T A, how many queries may come."""
        return self.horizon * self.max_arrivals

    @property
    def num_blocks(self) -> int:
        """B, the number of parameter blocks."""
        return self.num_servers if self.parameters == "disjoint" else 1

    @property
    def contexts_shape(self) -> tuple[int, ...]:
        """The shape of a run's context table: [I, d] (disjoint) or [I, N, d] (shared)."""
        servers = () if self.parameters == "disjoint" else (self.num_servers,)
        return (self.num_rows, *servers, self.dim)


class Queue(NamedTuple):
    """The fixed-capacity masked queue; slot c is free iff `arrived[c] == 0`.

    Attributes:
        row: [C] int32 row of the run's context table.
        arrived: [C] int32 round of arrival (rounds count from 1), 0 where the slot is free.
        served: [C] int32 how many times the query was served so far.
        shown: [C, N] int32 in how many of these times each server was in its assortment, for a
            policy that needs `offer_counts`, else None.
        entered: [C] int32 the round in which the query came or was last served, for an
            policy that needs `entry_rounds`, else None.
        number: [C] int32 of the query, in the order of arrival from 0, for a recorder that is
            `numbered`, where several come in a round, else None.
    """

    row: Array
    arrived: Array
    served: Array
    shown: Array | None = None
    entered: Array | None = None
    number: Array | None = None


class Observation(NamedTuple):
    """What a policy sees at the beginning of round t.

    Attributes:
        problem: the static shapes.
        round: [] int32 t, counting from 1.
        queue: X_t as a masked queue.
        features: [C, d] (disjoint) or [C, N, d] (shared) features of each slot's query.
        arrived: [] bool A(t-1), whether a query arrived in the round before.
        newest: [] int32 slot of x^(t-1), the last of several; meaningful only if `arrived`.
        prompts: [C] int32 the dataset's own number of each slot's query.
        utilities: [C, N] true utilities of each slot's query for a policy that needs
            `true_utilities`, else None.
        available: [N] bool which servers answer this round; None where all always do.
        run_length: T as numbers if the program was compiled for a longer horizon, else None.
    """

    problem: Problem
    round: Array
    queue: Queue
    features: Array
    arrived: Array
    newest: Array
    prompts: Array
    utilities: Array | None
    available: Array | None = None
    run_length: RunLength | None = None


def broadcast_marks(marks: Array, values: Array) -> Array:
    """Give marks [..., K], or one for all, the axes of values [..., K, ...]."""
    return marks.reshape(*marks.shape, *(1,) * (values.ndim - marks.ndim)) if marks.ndim else marks


def mask_hidden(shown: Array | None, values: Array, otherwise: float) -> Array:
    """Return values [..., K, ...] of the servers that answer, another one of the others.

    Args:
        shown: [..., K] bool which do; None: all.
        values: of each server of an assortment.
        otherwise: takes their place.
    """
    return values if shown is None else jnp.where(broadcast_marks(shown, values), values, otherwise)


class Action(NamedTuple):
    """A policy's decision: which slot to serve, with which servers.

    Attributes:
        slot: [] int32 queue slot.
        servers: [K] int32 distinct server numbers, increasing.
        explored: [] bool whether this is a forced exploration.
        shown: [K] bool which of them answer; None: all do. A policy of `smaller_assortments`
            marks at least one; where K > 1 and LLMs may be down, the action that `update` is given
            marks those that answered.
    """

    slot: Array
    servers: Array
    explored: Array
    shown: Array | None = None

    @property
    def answering_servers(self) -> Array:
        """Return the servers, one that answers in place of each that does not: [K] int32."""
        if self.shown is None:
            return self.servers
        return jnp.where(self.shown, self.servers, self.servers[jnp.argmax(self.shown)])

    def mask_hidden(self, values: Array, otherwise: float) -> Array:
        """Return values [K, ...] of those who answer, another one of the others."""
        return mask_hidden(self.shown, values, otherwise)


class Feedback(NamedTuple):
    """The user's choice.

    Attributes:
        choice: [] int32 position in `Action.servers` of the chosen answer; K is the outside option.
        valid: [] bool False in a round with an empty queue, in which no server answers, or whose
            feedback is lost: nothing may then be learnt.
        number: [] int32 of the attempt, 1 .. T c, where several may end in a round; None where it
            is the round's.
    """

    choice: Array
    valid: Array
    number: Array | None = None


class Needs(NamedTuple):
    """What a policy needs from the simulator; what it does not need costs nothing.

    Attributes:
        true_utilities: `Observation.utilities` holds the true utilities: the oracle's privilege.
        contexts: rounds keep `Observation.features`. A policy without contexts serves about as
            fast as uniform routing, and where more queries arrive its queue starts with the slots
            that this takes.
        offer_counts: `Queue.shown` counts the offers of each server to each waiting query.
        entry_rounds: `Queue.entered` holds the round in which each query last joined the queue.
        smaller_assortments: some rounds offer fewer than K servers, so each action has
            `Action.shown`.
        fusion_emitters: XLA compiles the rounds with its fusion emitters; without them they
            compile faster and run as fast (`engine.programs`).
    """

    true_utilities: bool = False
    contexts: bool = True
    offer_counts: bool = False
    entry_rounds: bool = False
    smaller_assortments: bool = False
    fusion_emitters: bool = True


class Policy(Protocol):
    """How a query and an assortment are picked, and what is learnt from the choice.

    A policy is a frozen pytree dataclass (`core.pytree`): its floats are leaves. Write it for one
    run; `sweep` batches it. The simulator discards what `select` decides for an empty queue. A
    policy may have a method `check(problem)` that raises ValueError for settings out of range;
    `sweep` calls it before anything compiles. An attribute or property `needs` declares its
    `Needs`; without it the defaults apply.
    """

    def init(self, problem: Problem, contexts: Array) -> Any:
        """Return the state before round 1, a pytree; `contexts` is the run's table, as observed."""

    def select(self, key: Array, state: Any, observation: Observation) -> Action:
        """Pick a waiting query and K distinct servers, in increasing order.

        `key` is the round's own key: draw from `rng.Stream` addresses under it.
        """

    def update(
        self, state: Any, observation: Observation, action: Action, feedback: Feedback
    ) -> Any:
        """Learn from one choice. With `feedback.valid` False no decision may ever change by it."""


def read_needs(policy: Any) -> Needs:
    """Return the needs of a policy; the defaults where it declares none."""
    needs: Needs = getattr(policy, "needs", Needs())
    return needs


class Wrapper:
    """A policy around another one; its needs are those of the policy within.

    Attributes:
        policy: the policy within.
    """

    policy: Any

    @property
    def needs(self) -> Needs:
        """Return the needs of the policy within."""
        return read_needs(self.policy)


def blank_action(size: int, marked: bool) -> Action:
    """Return an action of K servers before any was taken, with `shown` if it is `marked`."""
    shown = jnp.ones(size, bool) if marked else None
    servers = jnp.arange(size, dtype=jnp.int32)
    return Action(jnp.zeros((), jnp.int32), servers, jnp.zeros((), bool), shown)


class Source(Protocol):
    """Where queries come from: a frozen pytree dataclass.

    A query arrives with probability lambda in each round, unless the source is one of
    `ArrivalSource`; one whose problem says `max_arrivals` above 1 must be. An attribute
    `changes = True` says that tastes change while queries wait: `optimal` is then a yardstick.
    Another, `extends = True`, says that programs of longer runs may draw its runs too: what it
    draws for a round does not follow from the horizon. `testing.check_source` checks a source of
    one's own.
    """

    def problem(self, K: int, horizon: int) -> Problem:
        """Return the static shapes of a run."""

    def check(self, seeds: np.ndarray, arrival_rate: float, K: int) -> None:
        """Raise ValueError, in one sentence, for an instance that cannot be drawn."""

    def uniform_service(self, seeds: np.ndarray, arrival_rate: float, K: int) -> float:
        """Return how many queries a round FIFO serves with uniform assortments, about.

        The mean over seeds, or over some of many, of 1 / mean over queries of 1 / (mean over
        assortments of R(x, S)).
        """

    def draw_workload(self, key: Array, arrival_rate: Array, problem: Problem) -> Workload:
        """Draw one run's instance; the same key gives the same first rounds at any horizon."""


class ArrivalSource(Source, Protocol):
    """A source that says itself when queries arrive."""

    def draw_arrivals(self, key: Array, arrival_rate: Array, horizon: int) -> Array:
        """Draw A(1), ..., A(T) of the run with this key, `arrival_rate` on average.

        [T] bool; where several may come in a round, [T] int32 how many do, at most
        `max_arrivals`: the first ones of the round's `Workload.arrival_rows`.
        """


def draws_arrivals(source: Source) -> TypeGuard[ArrivalSource]:
    """Tell whether a source says itself when queries arrive."""
    return hasattr(source, "draw_arrivals")
