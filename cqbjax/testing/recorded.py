"""One run's instance and randomness, recorded from JAX keys for the NumPy reference, and replayed.

`record` gives the reference exactly what the simulator will draw; `play` runs the simulator and
returns a trajectory in the reference's own terms.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cqbjax import rng, simulate
from cqbjax.policies import Acqb, Optimal, QueueingBandit, RandomRouting
from cqbjax.policies.picking import random_assortment
from cqbjax.pytree import pytree, static
from cqbjax.testing import reference
from cqbjax.types import Action, Feedback, Observation, Problem, Source

EXPLORE_ROUNDS = 40
SCHEDULES = {"acqb_fifo": "oldest", "acqb_rr": "least_served", "acqb_random": "random"}
EXPLORE_RULES = {"fifo": "oldest", "lifo": "newest", "rr": "least_served", "random": "random"}
# Labels whose policies keep the same kind of state, so that one compiled program holds them all.
SIMPLE = ("optimal", "random", "rand_rout")
BANDITS = ("q_ucb", "q_ths")
OPTIMISTIC = tuple(
    label for label in reference.POLICIES if label not in reference.BASELINE_POLICIES
)


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
    if label in BANDITS:
        return QueueingBandit(index="ucb" if label == "q_ucb" else "thompson")
    variant: dict[str, Any] = {}
    if label == "cqb_eps":
        variant = {"exploration": "phased"}
    elif label == "acqb_ucb":
        variant = {"optimism": "ucb"}
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
        **variant,
        **static_fields,
    )


@pytree
class Switched:
    """Every policy of a case in one compiled program, chosen by a traced number.

    Compiling is most of a comparison's time. Policies of one kind differ in `select` alone, so a
    kind has one state and one update, by its first member; kinds have a state each.

    Attributes:
        kinds: policies of one kind together.
        labels: of all of them, in the same order.
        number: [] int32 which of them acts.
    """

    kinds: tuple[tuple[Any, ...], ...]
    number: Any
    labels: tuple[str, ...] = static()

    informed = True

    def init(self, problem: Problem, contexts: jax.Array) -> Any:
        """Return the state of each kind."""
        return tuple(members[0].init(problem, contexts) for members in self.kinds)

    def select(self, key: jax.Array, state: Any, observation: Observation) -> Action:
        """Let the chosen member decide; only an informed one is shown the true utilities."""

        def decide(member: Any, state: Any) -> Action:
            seen = observation if member.informed else observation._replace(utilities=None)
            return member.select(key, state, seen)

        branches = [
            functools.partial(decide, member, one)
            for members, one in zip(self.kinds, state, strict=True)
            for member in members
        ]
        return jax.lax.switch(self.number, branches)

    def update(
        self, state: Any, observation: Observation, action: Action, feedback: Feedback
    ) -> Any:
        """Learn as each kind does."""
        return tuple(
            members[0].update(one, observation, action, feedback)
            for members, one in zip(self.kinds, state, strict=True)
        )

    def acting(self, label: str) -> "Switched":
        """Return the same program with another policy chosen."""
        return dataclasses.replace(self, number=jnp.int32(self.labels.index(label)))


def switched(case: Case, **fields: Any) -> Switched:
    """Return every policy that is defined for a case; `fields` are static ones of `Acqb`."""
    kinds = [OPTIMISTIC, SIMPLE] + [BANDITS] * (case.assortment_size == 1)
    return Switched(
        kinds=tuple(
            tuple(policy(label, case, **(fields if kind is OPTIMISTIC else {})) for label in kind)
            for kind in kinds
        ),
        number=jnp.int32(0),
        labels=tuple(label for kind in kinds for label in kind),
    )


def record(case: Case) -> tuple[reference.World, reference.Draws]:
    """Return what a run of this case and seed will meet and draw, in float64 NumPy arrays."""
    world = _instance(case).world
    arrival, choice, draws, ranks = _draws(rng.run_key(case.seed), case.problem)
    return reference.World(
        features=_floats(world.contexts),
        utilities=_floats(world.utilities),
        arrival_index=np.asarray(world.arrival_rows, np.int64),
    ), reference.Draws(
        arrival=_floats(arrival),
        choice=_floats(choice),
        explore=_floats(draws.explore),
        normal=_floats(draws.normal),
        query=_floats(draws.query),
        assortment=np.asarray(ranks, np.int64),
        beta=_beta(rng.run_key(case.seed)),
    )


# The numbers do not depend on how well the code is optimised, and it is compiled faster so.
_jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


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
    )


def _floats(array: Any) -> reference.Floats:
    """Copy to a writable float64 array, so that a planted fault can be put into it."""
    return np.array(array, np.float64)


def _beta(key: jax.Array) -> Callable[[int, reference.Floats, reference.Floats], reference.Floats]:
    """Return the reference's beta callback: the draw of `QueueingBandit.sample` at its address."""
    at = jax.jit(lambda t: rng.stream_key(rng.round_key(key, t), rng.Stream.BETA))
    draw = jax.jit(jax.random.beta)
    return lambda t, a, b: np.asarray(draw(at(t), jnp.asarray(a), jnp.asarray(b)))


_prepare = _jit(simulate.prepare, static_argnames="problem")


def _instance(case: Case) -> simulate.Instance:
    """Draw the run's fixed part, compiled once a shape."""
    source = jax.tree.map(jnp.asarray, case.source)
    rate = jnp.asarray(case.arrival_rate, float)
    return _prepare(rng.run_key(case.seed), source, rate, case.problem)


@functools.partial(_jit, static_argnames=("problem", "capacity"))
def _scan(instance: simulate.Instance, policy: Switched, problem: Problem, capacity: int) -> Any:
    """Run every round; [T] decisions without the state, Q(t+1), theta, and lost queries."""

    def one(carry: simulate.Carry, round_: jax.Array) -> Any:
        carry, decision = simulate.run_round(policy, problem, instance, carry, round_)
        state = decision.state[0]
        return carry, (decision._replace(state=None), carry.totals.queue_length, state)

    rounds = jnp.arange(1, problem.horizon + 1, dtype=jnp.int32)
    start = simulate.start(policy, problem, instance, capacity)
    carry, (decision, length, state) = jax.lax.scan(one, start, rounds)
    theta = policy.kinds[0][0].theta(state, instance.world.contexts, problem)
    return decision, length, theta, carry.overflow


def play(case: Case, policy: Switched, capacity: int = 64) -> reference.Trajectory:
    """Run the simulator once and return the run in the reference's terms.

    Args:
        case: the configuration; its floats are already in `policy`.
        policy: what acts.
        capacity: queue slots.

    Raises:
        ValueError: if a query found no free slot.
    """
    decision, length, theta, overflow = _scan(_instance(case), policy, case.problem, capacity)
    if overflow:
        raise ValueError(f"capacity={capacity} overflowed in round {int(overflow)}: raise it")
    valid = np.asarray(decision.valid)
    servers = np.asarray(decision.servers, np.int64)
    position = np.asarray(decision.choice)
    departed = valid & (position < case.assortment_size)
    picked = np.minimum(position, case.assortment_size - 1)[:, None]
    chosen = np.take_along_axis(servers, picked, axis=1)[:, 0]
    learns = policy.labels[int(policy.number)] in OPTIMISTIC
    return reference.Trajectory(
        query=np.where(valid, np.asarray(decision.query, np.int64), -1),
        assortment=np.where(valid[:, None], servers, -1),
        choice=np.where(departed, chosen, -1),
        departed=departed,
        queue_length=np.asarray(length, np.int64),
        regret=_floats(decision.regret),
        explored=np.asarray(decision.explored),
        theta=_floats(theta) * learns,
    )
