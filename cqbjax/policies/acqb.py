"""ACQB and its relatives: one optimistic policy in three parts.

How to schedule (`schedule`), how to route (`optimism`), when to explore (`exploration`). ACQB,
CQB-eps, the scheduling ablations and the exploration variants are settings of it; all but
`optimism` are data of a run, so that they are one program and run in one batch.
"""

import math
from typing import Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax import estimation
from cqbjax.core import mnl, queueing, rng
from cqbjax.core.inputs import is_number
from cqbjax.core.pytree import check_options, option, option_index, pytree, static
from cqbjax.core.types import Action, Feedback, Needs, Observation, Problem
from cqbjax.estimation import gaussian
from cqbjax.policies import retries
from cqbjax.policies.picking import best_answer, instead
from cqbjax.policies.retries import RecallBy, Retry, Tally

Optimism = Literal["thompson", "ucb"]
Exploration = Literal["decaying", "phased", "independent"]
DECAYING, PHASED, INDEPENDENT = range(3)
# Products with samples that are written into a program one by one: as many compile in a minute.
MOST_PRODUCTS = 4096


class AcqbState(NamedTuple):
    """What ACQB carries from round to round.

    Attributes:
        belief: posterior and estimate of every block.
        turn: [] int32 c, the next assortment of the round-robin.
        tally: what became of every prompt's attempts, for `retry="recall"`, else None.
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


@pytree
class Acqb:
    """ACQB (Algorithm 1 with shared, Algorithm 2 with disjoint parameters) and its variants.

    Attributes:
        kappa: curvature constant in the radius.
        lambda0: regularisation, V_0 = lambda0 I.
        alpha_scale: multiplies the radius; 1 is the paper's formula.
        c1: exploration constant, eta(t) = min(1, c1 / sqrt(t + 1)).
        explore_rounds: tau, the pure-exploration rounds of `exploration="phased"`.
        schedule: `joint` (the argmax over queries and assortments), or a queue rule that picks the
            query of exploitation rounds, after which the best assortment for it is taken.
        optimism: `thompson` samples, or `ucb`: x'theta + alpha ||x||_{V^-1}.
        exploration: `decaying` (on arrivals, with eta(t-1)), `phased` (CQB-eps: on arrivals, always
            while t <= tau and with probability T^(-1/2) afterwards), or `independent` (eta(t-1)
            whether or not a query arrived).
        explore_query: the queue rule that picks whom to explore. `newest` is the paper's x^(t-1)
            wherever exploration waits for an arrival.
        num_samples: M; None is the paper's.
        estimator: `auto`, `running` or `newton_cg`.
        exact_steps: 0 for the estimator's own schedule, n > 0 to go to the exact minimiser every
            round: n visits of every page (`running`), n Newton steps (`newton_cg`).
        retry: what earlier attempts of a query change of the optimistic pair: `same`, nothing (the
            paper); `fallback`: servers already shown for it are left out while others remain;
            `posterior`: its utilities fall with its own failures; `recall`: they follow what all
            queries of its prompt met (`retries.after_outcomes`); `cache`: as `fallback`, the
            servers first that satisfied a query of its prompt. Exploration is as it is: its query
            is new wherever exploration waits for an arrival.
        precision: of `posterior` and `recall`.
        recall_by: by what `recall` and `cache` know a prompt: its `row` of the table, or its
            `embedding`.
        window: W, an even number: learn from the last W / 2 to W attempts only
            (`estimation.WindowedBelief`), for preferences that change. In eta, t
            then counts from the start of the younger belief. None: all attempts, as in the paper.
            The counts of `recall` are never forgotten.
        exploit_size: how many of the K servers exploitation rounds show, the best of them; rounds
            that explore show all K. One with K = 2 is what the paper says of practice: one answer,
            and two now and then, where more is to be learnt. None: K in every round.
        offset: [I, N] what is known beforehand of the utility of each row of the run's table,
            x'theta_0 (a prior from logs: `offline.Warm`); theta is then learnt as what is to be
            added. None is none; with it the estimator must be `newton_cg`.
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
        """Refuse settings out of range.

        Raises:
            ValueError: naming the setting and what is allowed.
        """
        check_options(self)
        retries.check_precision(self.precision)
        samples = self.num_samples
        if samples is not None and (type(samples) is not int or samples < 1):
            raise ValueError(f"num_samples={samples} must be a whole number, at least 1, or null")
        self._check_samples(problem)
        window = self.window
        if window is not None and (type(window) is not int or window < 2 or window % 2):
            raise ValueError(f"window={window} must be an even number, at least 2, or null")
        few, most = self.exploit_size, problem.assortment_size
        if few is not None and (type(few) is not int or not 1 <= few <= most):
            raise ValueError(
                f"exploit_size={few} must be a whole number in 1..K, here {most}, or null"
            )
        for key in ("kappa", "lambda0", "alpha_scale", "c1", "explore_rounds"):
            value = getattr(self, key)
            if not is_number(value) or not 0 <= float(value) < math.inf:
                raise ValueError(f"{key}={value} must be a finite number and not negative")
        if float(self.lambda0) == 0:
            raise ValueError("lambda0=0 must be above 0: V_0 = lambda0 I has to be invertible")
        self._check_offset(problem)
        least = self.belief(problem).least_lambda0
        if float(self.lambda0) < least:
            raise ValueError(
                f"lambda0={float(self.lambda0):g} must be at least {least:g} here: "
                "with less the running estimate is not held to its accuracy "
                "(docs/notebook/estimator.md)"
            )

    def _check_samples(self, problem: Problem) -> None:
        """Refuse samples of which a program could not be made: each is written into it."""
        products = (self.num_samples or 0) * problem.num_blocks
        pool = isinstance(estimation.choose_belief(self.estimator, problem), estimation.TableBelief)
        if self.optimism == "thompson" and products > MOST_PRODUCTS and not pool:
            raise ValueError(
                f"num_samples={self.num_samples} takes {products:,} products a query, each a part "
                f"of the program, and at most {MOST_PRODUCTS:,} can be compiled: at most "
                f"num_samples={MOST_PRODUCTS // problem.num_blocks} here"
            )

    def _check_offset(self, problem: Problem) -> None:
        if self.offset is None:
            return
        rows, offset = (problem.num_rows, problem.num_servers), np.asarray(self.offset)
        if offset.shape != rows or not np.isfinite(offset).all():
            raise ValueError(
                f"offset has shape {list(offset.shape)}; it must be finite numbers {list(rows)}, "
                "one for each row of a run's table and server"
            )
        if not isinstance(
            estimation.choose_belief(self.estimator, problem), estimation.TableBelief
        ):
            raise ValueError("offset needs estimator=newton_cg")

    def init(self, problem: Problem, contexts: Array) -> AcqbState:
        """Return V = lambda0 I, theta = 0, c = 0."""
        lambda0, belief = jnp.asarray(self.lambda0, float), self.belief(problem)
        begun = belief.init(contexts, lambda0, self.offset)
        tally = retries.begin(self.retry, problem, contexts, self.recall_by)
        return AcqbState(begun, jnp.zeros((), jnp.int32), tally)

    def belief(self, problem: Problem) -> estimation.Belief:
        """Return how the estimate and the posterior are kept."""
        return estimation.choose_belief(self.estimator, problem, self.exact_steps, self.window)

    def theta(self, state: AcqbState, contexts: Array, problem: Problem) -> Array:
        """Return the estimates [B, d] behind a state, or [T, B, d] behind a stack of states."""
        return self.belief(problem).theta(state.belief, contexts)

    def draws(self, key: Array, problem: Problem) -> Draws:
        """Draw the round's randomness from its addresses."""
        samples = self.num_samples or gaussian.num_samples(problem.assortment_size)
        shape = (samples, problem.num_blocks, problem.dim)
        return Draws(
            rng.uniform(key, rng.Stream.EXPLORE),
            rng.uniform(key, rng.Stream.QUERY),
            rng.normals(key, rng.Stream.NORMAL, shape),
        )

    def select(self, key: Array, state: AcqbState, observation: Observation) -> Action:
        """Explore (Algorithm 1 lines 3 to 5) or take the optimistic pair (lines 6 to 8)."""
        problem = observation.problem
        draws = self.draws(key, problem)
        explored = self._explores(draws.explore, state, observation)
        optimistic = retries.revised(
            self.retry, self.optimistic(draws, state, observation), observation, state.tally,
            self.precision,
        )  # fmt: skip
        schedule = option_index(queueing.Schedule, self.schedule, "schedule")
        explore_query = option_index(queueing.Rule, self.explore_query, "explore_query")
        # One pass over the queue: the rule is the exploration's or the schedule's.
        rule = jnp.where(explored, explore_query, schedule)
        slot, picks = best_answer(
            rule, observation, optimistic, draws.query, self.retry, self.exploit_size
        )
        best = mnl.sort_picks(picks)
        turn = mnl.unrank_assortment(state.turn, problem.num_servers, problem.assortment_size)
        turn = instead(key, turn, observation)
        shown = None
        if self.exploit_size is not None:
            first = jnp.stack(picks[: self.exploit_size])
            shown = explored | jnp.any(best[:, None] == first, axis=1)
        return Action(slot, jnp.where(explored, turn, best), explored, shown)

    def _explores(self, uniform: Array, state: AcqbState, observation: Observation) -> Array:
        """Decide whether this round explores: [] bool."""
        t = since = observation.round
        if isinstance(state.belief, estimation.WindowedBeliefState):
            # The younger belief begins as ACQB does, and needs to be shown as much.
            since = state.belief.attempts + 1
        kind = option_index(Exploration, self.exploration, "exploration")
        decaying = jnp.minimum(1.0, self.c1 / jnp.sqrt(since.astype(float)))
        run_length = observation.run_length
        root = observation.problem.horizon**-0.5 if run_length is None else run_length.root
        phased = jnp.where(t <= self.explore_rounds, 1.0, root)
        wanted = uniform < jnp.where(kind == PHASED, phased, decaying)
        return wanted & (observation.arrived | (kind == INDEPENDENT))

    def optimistic(self, draws: Draws, state: AcqbState, observation: Observation) -> Array:
        """Return the optimistic utilities u~ of every slot and server: [C, N]."""
        belief = self.belief(observation.problem)
        alpha = self.radius(observation.problem, belief.learnt(state.belief))
        if self.optimism == "ucb":
            return belief.bounded(state.belief, observation, alpha)
        return belief.sampled(state.belief, observation, alpha, draws.normal)

    def radius(self, problem: Problem, learnt: Array) -> Array:
        """Return alpha of every block: [B]."""
        lambda0 = jnp.asarray(self.lambda0, float)
        return gaussian.radius(problem, learnt, self.kappa, lambda0, self.alpha_scale)

    def update(
        self, state: AcqbState, observation: Observation, action: Action, feedback: Feedback
    ) -> AcqbState:
        """Update V, theta-hat and the round-robin counter (Algorithm 1 lines 9 to 11)."""
        problem = observation.problem
        row = observation.queue.row[action.slot]
        features = observation.features[action.slot]
        if problem.parameters == "shared":
            features = features[action.servers]
        number = observation.round if feedback.number is None else feedback.number
        new = estimation.Interaction(
            number, row, features, action.servers, feedback.choice, feedback.valid, action.shown
        )
        learnt = self.belief(problem).update(state.belief, new)
        used = action.explored & feedback.valid
        count = mnl.num_assortments(problem.num_servers, problem.assortment_size)
        turn = jnp.where(used, (state.turn + 1) % count, state.turn)
        return AcqbState(learnt, turn, retries.add(state.tally, observation, action, feedback))
