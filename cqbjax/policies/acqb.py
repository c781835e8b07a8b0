"""ACQB and its variants: one optimistic policy in three parts.

The parts are how to schedule (`schedule`), how to route (`optimism`) and when to explore
(`exploration`). ACQB, CQB-eps, the scheduling ablations and the exploration variants are settings
of it. `schedule` and `exploration` are inputs of the compiled program, so policies that differ only
in them share one program and run in one batch.
"""

from typing import Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax import estimation
from cqbjax.core import mnl, queueing, rng
from cqbjax.core.inputs import Condition, check_interval, read_when
from cqbjax.core.pytree import option, option_index, pytree, static
from cqbjax.core.types import Action, Feedback, Needs, Observation, Problem
from cqbjax.estimation import TableBelief, gaussian
from cqbjax.policies import retries
from cqbjax.policies.assortments import choose_query_and_servers, unrank_available
from cqbjax.policies.exploration import Exploration, advance_turn, draw_exploration
from cqbjax.policies.retries import RecallBy, Retry, Tally

Optimism = Literal["thompson", "ucb"]
# Most products with samples in a program, which contains each of them: this many compile in a
# minute.
MOST_PRODUCTS = 4096


class AcqbState(NamedTuple):
    """What ACQB carries from round to round.

    Attributes:
        belief: theta-hat and V of every block.
        turn: [] int32 c, the next assortment of the round-robin.
        tally: outcomes by prompt for `retry="recall"` and `"cache"`, else None.
    """

    belief: estimation.State
    turn: Array
    tally: Tally | None = None


class Draws(NamedTuple):
    """The randomness of one round.

    Attributes:
        explore: [] uniform that decides E(t-1).
        query: [] uniform for the random scheduling rules.
        normal: [M, B, d] standard normals of the Thompson samples.
    """

    explore: Array
    query: Array
    normal: Array


@read_when(
    c1=Condition("exploration", "decaying", "independent"),
    explore_rounds=Condition("exploration", "phased"),
    num_samples=Condition("optimism", "thompson"),
    precision=Condition("retry", "posterior", "recall"),
    recall_by=Condition("retry", "recall", "cache"),
)
@pytree
class Acqb:
    """ACQB (Algorithm 1 with shared, Algorithm 2 with disjoint parameters) and its variants.

    Attributes:
        kappa: curvature constant in the radius.
        lambda0: regularisation, V_0 = lambda0 I.
        alpha_scale: multiplies the radius; 1 is the paper's formula.
        c1: exploration constant, eta(t) = min(1, c1 / sqrt(t + 1)).
        explore_rounds: tau, the pure-exploration rounds of `exploration="phased"`.
        schedule: how exploitation rounds choose: `joint` (the argmax over queries and assortments),
            or a queue rule, which picks a query that then gets its best assortment.
        optimism: `thompson` samples, or `ucb`: x'theta + alpha ||x||_{V^-1}.
        exploration: when it explores: `decaying`, `phased` (CQB-eps), `independent` or `none`
            (`exploration.draw_exploration`).
        explore_query: the queue rule that picks the query to explore. If exploration happens on
            arrivals, `newest` is the query that has just arrived, the paper's x^(t-1).
        num_samples: M, Thompson samples per round; None: the paper's formula, which depends on K.
        estimator: `auto`, `running` or `newton_cg` (`estimation.choose_belief`).
        exact_steps: n > 0: iterate towards the exact minimiser in every round, with n steps: passes
            over the stored history (`running`) or Newton steps (`newton_cg`). 0: the estimator's
            default.
        sweeps: n > 0: after the step of the offered blocks, every round takes n joint Newton steps
            of all blocks (`running`). 0: Algorithm 2, which moves only the offered blocks; for
            K > 1 its estimate is not the joint minimiser.
        retry: how exploitation treats a query that returns: `same`, like a new one (the paper);
            `fallback`: without the servers already offered to it, while others remain; `posterior`:
            with utilities lowered by its own failures; `recall`: with utilities conditioned on the
            outcomes of all queries with the same prompt (`retries.condition_on_outcomes`); `cache`:
            as `fallback`, but first the servers that satisfied a query with the same prompt.
        precision: s, the weight of the predicted utility in `posterior` and `recall`, in attempts
            (`retries.condition_on_outcomes`).
        recall_by: what identifies a prompt for `recall` and `cache`: its `row` of the table, or its
            `embedding`.
        window: W, an even number: learn from the last W / 2 to W attempts only
            (`estimation.WindowedBelief`), for preferences that change. Two copies of the belief
            learn, and the older one decides; t in eta(t) then counts the attempts since the younger
            copy began to learn. None: learn from all attempts, as in the paper. The counts of
            `recall` are never forgotten.
        exploit_size: how many servers exploitation rounds offer, the best of the K; rounds that
            explore offer all K. K = 2 with `exploit_size=1` is the practice that the paper
            describes: usually one answer, and two to learn more. None: K in every round.
        offset: [I, N] known part x'theta_0 of the utility of each row of the run's table, for
            example from logs (`offline.WarmStart`). ACQB then learns only the difference from it.
            None: zero. It needs the estimator `newton_cg`.
    """

    kappa: Array | float = 1.0
    lambda0: Array | float = 1.0
    alpha_scale: Array | float = 1.0
    c1: Array | float = 1.0
    explore_rounds: Array | float = 0.0
    schedule: queueing.Schedule | Array = option(default="joint")
    exploration: Exploration | Array = option(default="decaying")
    explore_query: queueing.Rule | Array = option(default="newest")
    optimism: Optimism = static(default="thompson")
    num_samples: int | None = static(default=None)
    estimator: estimation.Estimator = static(default="auto")
    exact_steps: int = static(default=0)
    sweeps: int = static(default=0)
    retry: Retry = static(default="same")
    precision: Array | float = 1.0
    recall_by: RecallBy = static(default="row")
    window: int | None = static(default=None)
    exploit_size: int | None = static(default=None)
    offset: Array | None = None

    @property
    def needs(self) -> Needs:
        """Return what the settings need."""
        return Needs(
            offer_counts=retries.needs_offer_counts(self.retry),
            smaller_assortments=self.exploit_size is not None,
            fusion_emitters=False,
        )

    def check(self, problem: Problem) -> None:
        """Validate the settings.

        Raises:
            ValueError: naming the setting and what is allowed.
        """
        samples, window, few = self.num_samples, self.window, self.exploit_size
        if type(self.sweeps) is not int or self.sweeps < 0:
            raise ValueError(f"sweeps={self.sweeps} must be a whole number, at least 0")
        if samples is not None and (type(samples) is not int or samples < 1):
            raise ValueError(f"num_samples={samples} must be a whole number, at least 1, or null")
        if window is not None and (type(window) is not int or window < 2 or window % 2):
            raise ValueError(f"window={window} must be an even number, at least 2, or null")
        size = problem.assortment_size
        if few is not None and (type(few) is not int or not 1 <= few <= size):
            raise ValueError(
                f"exploit_size={few} must be a whole number in 1..K, here {size}, or null"
            )
        check_interval(self, "[0, inf)", "kappa", "alpha_scale", "c1", "explore_rounds")
        check_interval(self, "(0, inf)", "lambda0", "precision")
        table = isinstance(self.belief(problem), TableBelief)
        products = (samples or 0) * problem.num_blocks
        if self.optimism == "thompson" and products > MOST_PRODUCTS and not table:
            raise ValueError(
                f"num_samples={samples} takes {products:,} products a query, each a part "
                f"of the program, and at most {MOST_PRODUCTS:,} can be compiled: at most "
                f"num_samples={MOST_PRODUCTS // problem.num_blocks} here"
            )
        if self.offset is not None:
            self._check_offset(problem, table)
        least = self.belief(problem).least_lambda0
        if float(self.lambda0) < least:
            raise ValueError(
                f"lambda0={float(self.lambda0):g} must be at least {least:g} here: "
                "with less the running estimate is not held to its accuracy "
                "(docs/notebook/estimator.md)"
            )

    def _check_offset(self, problem: Problem, table: bool) -> None:
        rows, offset = (problem.num_rows, problem.num_servers), np.asarray(self.offset)
        if offset.shape != rows or not np.isfinite(offset).all():
            raise ValueError(
                f"offset has shape {list(offset.shape)}; it must be finite numbers {list(rows)}, "
                "one for each row of a run's table and server"
            )
        if not table:
            raise ValueError("offset needs estimator=newton_cg")

    def init(self, problem: Problem, contexts: Array) -> AcqbState:
        """Return V = lambda0 I, theta = 0, and the first assortment of the round-robin."""
        belief = self.belief(problem).init(contexts, jnp.asarray(self.lambda0, float), self.offset)
        tally = retries.init_tally(self.retry, problem, contexts, self.recall_by)
        return AcqbState(belief, jnp.zeros((), jnp.int32), tally)

    def belief(self, problem: Problem) -> estimation.Belief:
        """Return the estimator: its shapes and methods."""
        return estimation.choose_belief(
            self.estimator, problem, self.exact_steps, self.window, self.sweeps
        )

    def theta(self, state: AcqbState, contexts: Array, problem: Problem) -> Array:
        """Return the estimates of a state: [B, d], or [T, B, d] of a stack of states."""
        return self.belief(problem).theta(state.belief, contexts)

    def draws(self, key: Array, problem: Problem) -> Draws:
        """Draw the randomness of one round."""
        samples = self.num_samples or gaussian.num_samples(problem.assortment_size)
        shape = (samples, problem.num_blocks, problem.dim)
        return Draws(
            rng.uniform(key, rng.Stream.EXPLORE),
            rng.uniform(key, rng.Stream.QUERY),
            rng.normals(key, rng.Stream.NORMAL, shape),
        )

    def select(self, key: Array, state: AcqbState, observation: Observation) -> Action:
        """Explore (Algorithm 1 lines 2 to 4) or take the optimistic pair (lines 6 and 7)."""
        draws = self.draws(key, observation.problem)
        explored = self._explores(draws.explore, state, observation)
        utilities = self.optimistic(draws, state, observation)
        schedule = option_index(queueing.Schedule, self.schedule, "schedule")
        explore_query = option_index(queueing.Rule, self.explore_query, "explore_query")
        # One pass over the queue, with the rule of exploration or of exploitation.
        rule = jnp.where(explored, explore_query, schedule)
        slot, best = choose_query_and_servers(
            rule, observation, utilities, draws.query, self.retry, state.tally, self.precision,
            self.exploit_size,
        )  # fmt: skip
        servers = mnl.sort_picks(best)
        turn = unrank_available(key, state.turn, observation)
        offered = None
        if self.exploit_size is not None:
            first = jnp.stack(best[: self.exploit_size])
            offered = explored | jnp.any(servers[:, None] == first, axis=1)
        return Action(slot, jnp.where(explored, turn, servers), explored, offered)

    def _explores(self, uniform: Array, state: AcqbState, observation: Observation) -> Array:
        """Return E(t-1) and, except for `independent`, A(t-1): [] bool (Algorithm 1 line 2)."""
        since = observation.round
        if isinstance(state.belief, estimation.WindowedBeliefState):
            # The younger belief starts like ACQB and needs as much exploration.
            since = state.belief.attempts + 1
        return draw_exploration(
            self.exploration, uniform, since, observation, self.c1, self.explore_rounds
        )

    def optimistic(self, draws: Draws, state: AcqbState, observation: Observation) -> Array:
        """Return the optimistic utilities u~ of every slot and server: [C, N] (line 6)."""
        belief = self.belief(observation.problem)
        alpha = self.radius(observation.problem, belief.num_updates(state.belief))
        normal = None if self.optimism == "ucb" else draws.normal
        return belief.optimistic_utilities(state.belief, observation, alpha, normal)

    def radius(self, problem: Problem, num_updates: Array) -> Array:
        """Return alpha of every block: [B]."""
        lambda0 = jnp.asarray(self.lambda0, float)
        return gaussian.radius(problem, num_updates, self.kappa, lambda0, self.alpha_scale)

    def update(
        self, state: AcqbState, observation: Observation, action: Action, feedback: Feedback
    ) -> AcqbState:
        """Update theta-hat, V and the round-robin counter (Algorithm 1 lines 4, 10 and 11)."""
        new = make_interaction(observation, action, feedback)
        belief = self.belief(observation.problem).update(state.belief, new)
        turn = advance_turn(state.turn, observation, action, feedback)
        return AcqbState(
            belief, turn, retries.update_tally(state.tally, observation, action, feedback)
        )


def make_interaction(
    observation: Observation, action: Action, feedback: Feedback
) -> estimation.Interaction:
    """Return what an estimate learns from an attempt."""
    features = observation.features[action.slot]
    if observation.problem.parameters == "shared":
        features = features[action.servers]
    return estimation.Interaction(
        observation.round if feedback.number is None else feedback.number,
        observation.queue.row[action.slot], features, action.servers, feedback.choice,
        feedback.valid, action.offered,
    )  # fmt: skip
