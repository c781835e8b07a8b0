"""The contract between simulator, sources and policies.

Axis letters, used in every docstring of the package:

    T  rounds of the horizon             N  servers (LLMs)
    C  slots of the queue (capacity)     K  servers in an assortment
    A  most queries that can arrive in a round
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
    """Outcomes recorded in a log; a workload that has them does not use the choice model.

    Attributes:
        satisfied: [I] bool whether the first answer to a row satisfies its user.
        next: [I] int32 the row of what the user asks next if that answer does not satisfy.
    """

    satisfied: Array
    next: Array


class PreferenceDrift(NamedTuple):
    """How preferences change over the rounds, also those of queries that are already waiting.

    With an angle a_t in round t, the utilities of a row are cos(a_t) u + sin(a_t) v.

    Attributes:
        other: [I, N] v, the utilities at the angle pi/2.
        cos: [T] cos(a_t).
        sin: [T] sin(a_t).
    """

    other: Array
    cos: Array
    sin: Array


class AnswerCosts(NamedTuple):
    """Costs and scores of the answers in a table; policies never see them.

    Attributes:
        dollars: [I, N] cost of each answer, USD.
        scores: [I, N] graded quality of each answer.
    """

    dollars: Array
    scores: Array


class Workload(NamedTuple):
    """One run's instance, fixed before its first round.

    Attributes:
        contexts: [I, d] (disjoint) or [I, N, d] (shared) features of each table row.
        utilities: [I, N] true utilities x' theta*_j (or x_{-j}' theta*): hidden from policies.
        arrival_rows: [T] int32 table row of the query that arrives in round t, if one arrives;
            if A > 1, [T, A]: rows of the queries that arrive in round t, in order of arrival.
        prompts: [I] int32 number of each row's prompt in the dataset; without a dataset, the number
            of the row.
        log: recorded outcomes; None: users choose by the model. With a log, `utilities` only rank
            the queries for the optimal policy.
        drift: how preferences change; None: they do not.
        answer_costs: costs and scores of answers; None if the source has no such table.
    """

    contexts: Array
    utilities: Array
    arrival_rows: Array
    prompts: Array
    log: LoggedOutcomes | None = None
    drift: PreferenceDrift | None = None
    answer_costs: AnswerCosts | None = None


Parameters = Literal["disjoint", "shared"]
# The level at which the outcome of a server's answer is drawn (`Problem.outcome`).
Outcome = Literal["attempt", "query", "prompt"]
# Rounds of waiting at which the age column reaches its full value.
LONG_WAIT = 1e5
# The utility of a server that does not answer; its exponential is zero in every sum.
DOWN_UTILITY = -1e4
# The number in place of a server that was not offered.
NO_SERVER = -1


class Problem(NamedTuple):
    """The static settings of a run, which determine array shapes: hashable and never traced.

    Attributes:
        num_servers: N.
        assortment_size: K, with 1 <= K <= N.
        dim: d.
        num_rows: I, rows of the context table of one run.
        horizon: T, rounds.
        parameters: `disjoint` (Algorithm 2: a theta_j per server, contexts [I, d]) or `shared`
            (Algorithm 1: one theta, features [I, N, d]).
        pooled: whether a table row can arrive more than once (a pool of prompts).
        num_prompts: P, prompts of the dataset behind the pool; 0 without a dataset.
        policy_contexts: whether a policy maps the source's contexts to others, as ACQB-CL does.
        max_arrivals: A, how many queries may arrive in a round; 1 in the paper.
        channels: c, how many queries are served at a time; 1 in the paper.
        has_costs: whether the source has costs and scores of answers.
        outcome: how often success is drawn: for each `attempt` (the paper); once per `query` and
            server, so that a server that failed a query always fails it; or once per `prompt` and
            server, for all users. The last two need K = 1.
        outages: whether some servers may not answer in a round (`Observation.available`).
        age_column: index of the feature that grows while a query waits; None: no such feature. In
            the w-th round of waiting, the table's value is multiplied by
            min(1, log(1 + w) / log(1 + 100,000)).
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
        """T c, the most attempts in a run, and so the length of policies' histories."""
        return self.horizon * self.channels

    @property
    def max_queries(self) -> int:
        """T A, the most queries that can arrive in a run."""
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
    """The fixed-capacity masked queue; slot i is free iff `arrived[i] == 0`.

    Attributes:
        row: [C] int32 row of the run's context table.
        arrived: [C] int32 round of arrival (rounds count from 1), 0 where the slot is free.
        served: [C] int32 attempts of the query so far.
        offer_counts: [C, N] int32 number of the query's attempts in which each server was offered,
            for a policy that needs `offer_counts`, else None.
        entry_rounds: [C] int32 round of the arrival or of the last attempt, for a policy that
            needs `entry_rounds`, else None.
        number: [C] int32 number of the query; queries are numbered from 0 in the order of arrival.
            None unless A > 1 and a recorder sets `Recorder.numbered`.
    """

    row: Array
    arrived: Array
    served: Array
    offer_counts: Array | None = None
    entry_rounds: Array | None = None
    number: Array | None = None


class Observation(NamedTuple):
    """What a policy sees at the beginning of round t.

    Attributes:
        problem: the static settings.
        round: [] int32 t, counting from 1.
        queue: X_t as a masked queue.
        features: [C, d] (disjoint) or [C, N, d] (shared) features of each slot's query.
        arrived: [] bool A(t-1), whether a query arrived in the previous round.
        newest: [] int32 slot of x^(t-1), the query that arrived in the previous round (the last one
            if several did); meaningful only if `arrived`.
        prompts: [C] int32 number of each slot's prompt in the dataset.
        utilities: [C, N] true utilities of each slot's query; None unless the policy needs
            `true_utilities`.
        available: [N] bool which servers answer this round; None: all of them, in every round.
        run_length: None: the run's horizon T is `problem.horizon`. If the program was compiled for
            a longer horizon than the run's: the pair (T, T^(-1/2)).
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
    """Reshape marks [..., K] or [] to broadcast against values [..., K, ...]."""
    return marks.reshape(*marks.shape, *(1,) * (values.ndim - marks.ndim)) if marks.ndim else marks


def mask_unoffered(offered: Array | None, values: Array, otherwise: float) -> Array:
    """Return values [..., K, ...] of the offered servers, and `otherwise` for the others.

    Args:
        offered: [..., K] bool, such as `Action.offered`; None: all are offered.
        values: [..., K, ...] of the servers of an assortment.
        otherwise: the value of a server that is not offered or does not answer.
    """
    return (
        values
        if offered is None
        else jnp.where(broadcast_marks(offered, values), values, otherwise)
    )


class Action(NamedTuple):
    """A policy's decision: the query to serve, and the servers to offer.

    Attributes:
        slot: [] int32 queue slot.
        servers: [K] int32 distinct server numbers, increasing.
        explored: [] bool whether this is a forced exploration.
        offered: [K] bool which of the servers are offered; None: all. A policy that needs
            `smaller_assortments` marks at least one. With K > 1 and outages, `update` gets an
            action that marks the servers that answered.
    """

    slot: Array
    servers: Array
    explored: Array
    offered: Array | None = None

    @property
    def answering_servers(self) -> Array:
        """Servers [K] int32, with the first offered server in place of those that are not."""
        if self.offered is None:
            return self.servers
        return jnp.where(self.offered, self.servers, self.servers[jnp.argmax(self.offered)])


class Feedback(NamedTuple):
    """The user's choice.

    Attributes:
        choice: [] int32 position in `Action.servers` of the chosen answer; K is the outside option.
        valid: [] bool whether feedback arrives in this round. False if the queue was empty, no
            server answered, or the feedback is lost or comes later; the policy must then learn
            nothing.
        number: [] int32 number of the attempt, from 1 to T times c, for c service channels. None if
            c = 1, where attempt t is in round t.
    """

    choice: Array
    valid: Array
    number: Array | None = None


class Needs(NamedTuple):
    """The optional inputs and features that a policy needs; others are not computed.

    Attributes:
        true_utilities: `Observation.utilities`, for an oracle.
        contexts: `Observation.features`. If False, a run starts with as many queue slots as uniform
            routing needs, because policies without contexts often have long queues.
        offer_counts: `Queue.offer_counts`, the offers of each server to each waiting query.
        entry_rounds: `Queue.entry_rounds`, the round of each query's arrival or last attempt.
        smaller_assortments: the field `Action.offered`, because the policy may offer fewer than K
            servers.
        fusion_emitters: the fusion emitters of XLA. False for a policy that compiles faster without
            them and runs as fast (`engine.programs`).
    """

    true_utilities: bool = False
    contexts: bool = True
    offer_counts: bool = False
    entry_rounds: bool = False
    smaller_assortments: bool = False
    fusion_emitters: bool = True


class Policy(Protocol):
    """An algorithm that selects a query and an assortment, and learns from the user's choice.

    A policy is a frozen pytree dataclass (`core.pytree`): its floats are leaves. Write it for one
    run; `sweep` batches it. The simulator discards the action for an empty queue. A policy may have
    a method `check(problem)` that raises ValueError for settings out of range; `sweep` calls it
    before anything compiles. An attribute or property `needs` declares its `Needs`; without it the
    defaults apply.
    """

    def init(self, problem: Problem, contexts: Array) -> Any:
        """Return the state before round 1, a pytree.

        `contexts` is the run's context table, in the form that this policy sees.
        """

    def select(self, key: Array, state: Any, observation: Observation) -> Action:
        """Pick a waiting query and K distinct servers, in increasing order.

        `key` is the key of this round: draw with `rng.uniform(key, rng.Stream.X)` and the like.
        """

    def update(
        self, state: Any, observation: Observation, action: Action, feedback: Feedback
    ) -> Any:
        """Learn from one choice; if `feedback.valid` is False, do not change any later decision."""


def read_needs(policy: Any) -> Needs:
    """Return the needs of a policy, or the defaults if it does not declare them."""
    return getattr(policy, "needs", Needs())


class Wrapper:
    """Base class of a policy that wraps another policy and has the same needs.

    Attributes:
        policy: the wrapped policy.
    """

    policy: Any

    @property
    def needs(self) -> Needs:
        """Return the needs of the wrapped policy."""
        return read_needs(self.policy)


def blank_action(size: int, marked: bool) -> Action:
    """Return a placeholder action of K = `size` servers, with `offered` if `marked`."""
    offered = jnp.ones(size, bool) if marked else None
    servers = jnp.arange(size, dtype=jnp.int32)
    return Action(jnp.zeros((), jnp.int32), servers, jnp.zeros((), bool), offered)


class Source(Protocol):
    """The contexts, utilities and arrivals of queries: a frozen pytree dataclass.

    A query arrives with probability lambda in each round, unless the source is an `ArrivalSource`.
    A source whose problem has `max_arrivals` above 1 must be an `ArrivalSource`. Set the attribute
    `changes = True` if preferences change while queries wait; the policy `optimal` is then only a
    baseline, not the best policy. Set `extends = True` if the draws for a round do not depend on
    the horizon; a program compiled for a longer horizon can then be reused for shorter runs. Check
    a user-defined source with `testing.check_source`.
    """

    def problem(self, K: int, horizon: int) -> Problem:
        """Return the static settings of a run."""

    def check(self, seeds: np.ndarray, arrival_rate: float, K: int) -> None:
        """Raise ValueError, in one sentence, for a workload that cannot be drawn."""

    def uniform_service(self, seeds: np.ndarray, arrival_rate: float, K: int) -> float:
        """Return approximately how many queries per round FIFO serves with uniform assortments.

        For one seed this is 1 / mean_x[1 / mean_S R(x, S)], with means over the queries x and the
        assortments S. The result is the mean over the seeds, or over a few of them.
        """

    def draw_workload(self, key: Array, arrival_rate: Array, problem: Problem) -> Workload:
        """Draw a run's workload; the same key gives the same first rounds at any horizon."""


class ArrivalSource(Source, Protocol):
    """A source that draws the rounds in which queries arrive."""

    def draw_arrivals(self, key: Array, arrival_rate: Array, horizon: int) -> Array:
        """Draw A(1), ..., A(T) of the run with this key; their mean is `arrival_rate`.

        The result is [T] bool. If several queries may arrive per round, the result is the number n
        of arrivals in each round, [T] int32 and at most `max_arrivals`. The arriving queries are
        then the first n in the round's row of `Workload.arrival_rows`.
        """


def draws_arrivals(source: Source) -> TypeGuard[ArrivalSource]:
    """Return whether a source is an `ArrivalSource`, which draws its arrivals."""
    return hasattr(source, "draw_arrivals")
