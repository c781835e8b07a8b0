"""One run's instance and randomness, recorded from JAX keys for the NumPy reference, and replayed.

`record` gives the reference exactly what the simulator will draw; `play` runs the simulator and
returns a trajectory in the reference's own terms.
"""

import dataclasses
import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cqbjax import metrics, rng, simulate
from cqbjax.policies import Acqb, Optimal, QueueingBandit, RandomRouting, Routed
from cqbjax.policies.picking import random_assortment, random_lots
from cqbjax.pytree import pytree, static
from cqbjax.testing import reference
from cqbjax.testing.compiling import QUICKLY
from cqbjax.testing.contract.declared import signature
from cqbjax.types import Action, Feedback, Observation, Problem, Source

EXPLORE_ROUNDS = 40
SCHEDULES = {"acqb_fifo": "oldest", "acqb_rr": "least_served", "acqb_random": "random"}
EXPLORE_RULES = {"fifo": "oldest", "lifo": "newest", "rr": "least_served", "random": "random"}
# Labels whose policies keep the same kind of state, so that one compiled program runs them all.
SIMPLE = ("optimal", "random", "rand_rout", "rand_rout_fallback", *reference.ROUTED)
BANDITS = ("q_ucb", "q_ths")
OPTIMISTIC = tuple(label for label in reference.POLICIES if label not in (*SIMPLE, *BANDITS))


@dataclasses.dataclass(frozen=True)
class Case:
    """One configuration of problem and floats, the same for both simulators."""

    source: Source
    assortment_size: int
    arrival_rate: float
    horizon: int
    seed: int = 0
    kappa: float = 1.3
    lambda0: float = 0.7
    alpha_scale: float = 0.4
    c1: float = 0.9
    precision: float = 1.6

    @property
    def problem(self) -> Problem:
        """The static shapes."""
        return self.source.problem(self.assortment_size, self.horizon)

    def settings(self) -> reference.Settings:
        """Return the reference's settings; it checks W W' V = I after every update."""
        return reference.Settings(
            K=self.assortment_size,
            parameters=self.problem.parameters,
            arrival_rate=self.arrival_rate,
            horizon=self.horizon,
            kappa=self.kappa,
            lambda0=self.lambda0,
            alpha_scale=self.alpha_scale,
            c1=self.c1,
            explore_rounds=EXPLORE_ROUNDS,
            precision=self.precision,
            check=True,
        )


def policy(label: str, case: Case, **static_fields: Any) -> Any:
    """Return the simulator's policy of a label with the case's floats.

    Args:
        label: one of `reference.POLICIES`.
        case: gives kappa, lambda0, alpha_scale and c1.
        static_fields: of `Acqb`: estimator, exact_steps.
    """
    if label == "optimal":
        return Optimal()
    if label in ("random", "rand_rout"):
        return RandomRouting(schedule="random" if label == "random" else "oldest")
    if label == "rand_rout_fallback":
        return RandomRouting(schedule="oldest", retry="fallback")
    if label in reference.ROUTED:
        retry, schedule = reference.ROUTED[label]
        words: dict[str, Any] = {"retry": retry, "schedule": schedule}
        return Routed(
            scores=jnp.asarray(_scores(case)), by="row", precision=case.precision, **words
        )  # fmt: skip
    if label in BANDITS:
        return QueueingBandit(index="ucb" if label == "q_ucb" else "thompson")
    variant: dict[str, Any] = {}
    if label == "cqb_eps":
        variant = {"exploration": "phased"}
    elif label == "acqb_ucb":
        variant = {"optimism": "ucb"}
    elif label in reference.RETRIES:
        variant = {"retry": reference.RETRIES[label]}
    elif label in SCHEDULES:
        variant = {"schedule": SCHEDULES[label]}
    elif label.startswith("acqb_explore_"):
        rule = EXPLORE_RULES[label.removeprefix("acqb_explore_")]
        variant = {"exploration": "independent", "explore_query": rule}
    return Acqb(
        kappa=case.kappa,
        lambda0=case.lambda0,
        alpha_scale=case.alpha_scale,
        c1=case.c1,
        explore_rounds=float(EXPLORE_ROUNDS),
        precision=case.precision,
        **variant,
        **static_fields,
    )


@pytree
class Switched:
    """One run of a batch in which each run has a policy of its own.

    Compiling is most of a comparison's time, so that all policies of a case are one program. Those
    of one kind keep the same state and learn alike; of those of one static signature, which differ
    in numbers alone, `select` is compiled once.

    Attributes:
        branches: a policy of each signature; the one that acts holds this run's numbers.
        number: [] int32 which of them acts.
        kinds: of each branch.
    """

    branches: tuple[Any, ...]
    number: Any
    kinds: tuple[int, ...] = static()

    informed = True
    retry_aware = True

    def learners(self) -> dict[int, Any]:
        """Return a policy of each kind."""
        return dict(zip(self.kinds, self.branches, strict=True))

    def init(self, problem: Problem, contexts: jax.Array) -> Any:
        """Return the state of each kind."""
        return {kind: one.init(problem, contexts) for kind, one in self.learners().items()}

    def select(self, key: jax.Array, state: Any, observation: Observation) -> Action:
        """Let the run's policy decide; only an informed one is shown the true utilities."""

        def decide(kind: int, one: Any) -> Action:
            seen = observation if one.informed else observation._replace(utilities=None)
            return one.select(key, state[kind], seen)

        pairs = zip(self.kinds, self.branches, strict=True)
        return jax.lax.switch(self.number, [functools.partial(decide, *pair) for pair in pairs])

    def update(
        self, state: Any, observation: Observation, action: Action, feedback: Feedback
    ) -> Any:
        """Learn as each kind does."""
        return {
            kind: one.update(state[kind], observation, action, feedback)
            for kind, one in self.learners().items()
        }


def labels(case: Case) -> tuple[str, ...]:
    """Return the labels of every policy that is defined for a case."""
    return OPTIMISTIC + SIMPLE + BANDITS * (case.assortment_size == 1)


def switched(case: Case, **static_fields: Any) -> dict[str, Switched]:
    """Return a batch's run for each label of a case, all of one structure.

    Args:
        case: gives the numbers.
        static_fields: of `Acqb`: estimator, exact_steps.
    """
    policies = {
        label: jax.tree.map(_array, policy(label, case, **(static_fields if own else {})))
        for label in labels(case)
        for own in [label in OPTIMISTIC]
    }
    members = {signature(one): one for one in policies.values()}
    kinds = {
        signature(policies[label]): number
        for number, kind in enumerate((OPTIMISTIC, SIMPLE, BANDITS))
        for label in kind
        if label in policies
    }
    order = list(members)
    return {
        label: Switched(
            branches=tuple((members | {signature(one): one}).values()),
            number=jnp.int32(order.index(signature(one))),
            kinds=tuple(kinds[key] for key in order),
        )
        for label, one in policies.items()
    }


def _array(leaf: Any) -> jax.Array:
    """Return a number as an array that does not follow the type of what it meets."""
    return jnp.asarray(leaf, jnp.result_type(leaf))


def record(case: Case) -> tuple[reference.World, reference.Draws]:
    """Return what a run of this case and seed will meet and draw, in float64 NumPy arrays."""
    world = _instance(case).world
    arrival, choice, draws, ranks, lots = _draws(rng.run_key(case.seed), case.problem)
    return reference.World(
        features=_floats(world.contexts),
        utilities=_floats(world.utilities),
        arrival_index=np.asarray(world.arrival_rows, np.int64),
        scores=_scores(case),
    ), reference.Draws(
        arrival=_floats(arrival),
        choice=_floats(choice),
        explore=_floats(draws.explore),
        normal=_floats(draws.normal),
        query=_floats(draws.query),
        assortment=np.asarray(ranks, np.int64),
        lots=_floats(lots),
        beta=_beta(rng.run_key(case.seed)),
    )


_jit = functools.partial(jax.jit, compiler_options=QUICKLY)


@functools.partial(_jit, static_argnames="problem")
def _draws(key: jax.Array, problem: Problem) -> Any:
    """Draw every round's randomness at its address."""
    rounds = jnp.arange(1, problem.horizon + 1)
    keys = jax.vmap(functools.partial(rng.round_key, key))(rounds)
    return (
        rng.round_uniforms(key, rounds, rng.Stream.ARRIVAL),
        rng.round_uniforms(key, rounds, rng.Stream.CHOICE),
        jax.vmap(lambda key: Acqb().draws(key, problem))(keys),
        jax.vmap(lambda key: random_assortment(key, problem))(keys),
        jax.vmap(lambda key: random_lots(key, problem))(keys),
    )


def _scores(case: Case) -> reference.Floats:
    """Return what a router predicts of each row [I, N]: the truth and as much noise."""
    utilities = _floats(_instance(case).world.utilities)
    return utilities + np.random.default_rng(case.seed).normal(size=utilities.shape)


def _floats(array: Any) -> reference.Floats:
    """Copy to a writable float64 array, so that a planted fault can be put into it."""
    return np.array(array, np.float64)


def _beta(key: jax.Array) -> Callable[[int, reference.Floats, reference.Floats], reference.Floats]:
    """Return the reference's beta callback: the draw of `QueueingBandit.sample` at its address."""
    return lambda t, a, b: np.asarray(_beta_at(key, t, jnp.asarray(a), jnp.asarray(b)))


@_jit
def _beta_at(key: jax.Array, t: int, a: jax.Array, b: jax.Array) -> jax.Array:
    return jax.random.beta(rng.stream_key(rng.round_key(key, t), rng.Stream.BETA), a, b)


_prepare = _jit(simulate.draw_instance, static_argnames="problem")


def _instance(case: Case) -> simulate.Instance:
    """Draw the run's fixed part, compiled once a shape."""
    source = jax.tree.map(jnp.asarray, case.source)
    rate = jnp.asarray(case.arrival_rate, float)
    return _prepare(rng.run_key(case.seed), source, rate, case.problem)


@functools.partial(_jit, static_argnames=("problem", "capacity"))
def _scan(
    instances: simulate.Instance, policies: Switched, problem: Problem, capacity: int
) -> tuple[metrics.Decision, jax.Array, jax.Array, jax.Array]:
    """Run a batch: [S, T] decisions without the state, Q(t+1), theta, and [S] lost queries."""

    def one_run(instance: simulate.Instance, policy: Switched) -> Any:
        def one(carry: simulate.Carry, round_: jax.Array) -> Any:
            carry, decision = simulate.run_round(policy, problem, instance, carry, round_)
            state = decision.state[0]
            return carry, (decision._replace(state=None), carry.totals.queue_length, state)

        rounds = jnp.arange(1, problem.horizon + 1, dtype=jnp.int32)
        start = simulate.start(policy, problem, instance, capacity)
        carry, (decision, length, state) = jax.lax.scan(one, start, rounds)
        theta = policy.learners()[0].theta(state, instance.world.contexts, problem)
        return decision, length, theta, carry.overflow

    return jax.vmap(one_run)(instances, policies)


def play(
    runs: Sequence[tuple[Case, str]], capacity: int = 64, **static_fields: Any
) -> list[reference.Trajectory]:
    """Run the simulator and return every run in the reference's terms.

    As many runs are batched as a case has labels: all labels of one case and one label of many
    cases are then the same program.

    Args:
        runs: cases, which differ in numbers and seed alone, each with the label that acts.
        capacity: queue slots.
        static_fields: of `Acqb`: estimator, exact_steps.

    Raises:
        ValueError: if a query found no free slot.
    """
    width = len(labels(runs[0][0]))
    played = []
    for start in range(0, len(runs), width):
        batch = list(runs[start : start + width])
        padded = batch + batch[-1:] * (width - len(batch))
        played += _play_batch(padded, capacity, static_fields)[: len(batch)]
    return played


def _play_batch(
    runs: list[tuple[Case, str]], capacity: int, static_fields: dict[str, Any]
) -> list[reference.Trajectory]:
    """Run one batch."""
    problem = runs[0][0].problem
    instances = _stack([_instance(case) for case, _ in runs])
    policies = _stack([switched(case, **static_fields)[label] for case, label in runs])
    decision, length, theta, overflow = jax.tree.map(
        np.asarray, _scan(instances, policies, problem, capacity)
    )
    if overflow.any():
        lost = int(overflow[overflow > 0].min())
        raise ValueError(f"capacity={capacity} overflowed in round {lost}: raise it")
    learns = np.array([label in OPTIMISTIC for _, label in runs])
    theta = theta * learns[:, None, None, None]
    return [
        _trajectory(problem, *(jax.tree.map(operator.itemgetter(row), (decision, length, theta))))
        for row in range(len(runs))
    ]


def _stack(trees: list[Any]) -> Any:
    """Stack pytrees of one structure along a new leading axis."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def _trajectory(
    problem: Problem, decision: metrics.Decision, length: Any, theta: Any
) -> reference.Trajectory:
    """Return one run in the reference's terms."""
    valid = decision.valid
    servers = np.asarray(decision.servers, np.int64)
    departed = valid & (decision.choice < problem.assortment_size)
    picked = np.minimum(decision.choice, problem.assortment_size - 1)[:, None]
    chosen = np.take_along_axis(servers, picked, axis=1)[:, 0]
    return reference.Trajectory(
        query=np.where(valid, np.asarray(decision.query, np.int64), -1),
        assortment=np.where(valid[:, None], servers, -1),
        choice=np.where(departed, chosen, -1),
        departed=np.asarray(departed),
        queue_length=np.asarray(length, np.int64),
        regret=_floats(decision.regret),
        explored=np.asarray(decision.explored),
        theta=_floats(theta),
    )
