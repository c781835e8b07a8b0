"""What every policy must obey, as one function that anybody can call on their own policy.

    from cqbjax.testing.contract import check_policy
    check_policy(MyPolicy(epsilon=0.1))

It plays the policy in small random worlds through the simulator's own round, so what passes here
runs in `sweep`.
"""

import dataclasses
import operator
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax import metrics, mnl, rng, simulate
from cqbjax.pytree import pytree, static
from cqbjax.types import Action, Feedback, Observation, Policy, Problem, World, is_retry_aware

PROBLEM = Problem(
    num_servers=4,
    assortment_size=2,
    dim=3,
    num_rows=12,
    horizon=48,
    parameters="disjoint",
    pooled=True,
)
ARRIVAL_RATE = 0.6
# Rounds that are played again without any compiler, operation by operation.
UNCOMPILED_ROUNDS = 6
# A check runs a program for a moment only, so it is compiled quickly rather than well.
QUICKLY: dict[str, Any] = {"xla_backend_optimization_level": 0}
# What a policy is told in a round without a query: as the simulator does it, nothing at all, or
# another action and choice. No decision may depend on which.
NATURAL, SKIPPED, CHANGED = 0, 1, 2
# The batch of runs: which world each is in, and what it is told.
BATCH = (0, 0, 0, 1)
HOW = (NATURAL, SKIPPED, CHANGED, NATURAL)


class ContractError(AssertionError):
    """A policy breaks the contract of `cqbjax.types.Policy`; the message says which part."""


class _Shown(NamedTuple):
    """One round as the checks see it: the policy's action, what was waiting, what came of it."""

    action: Action
    arrived: Array
    decision: metrics.Decision


@pytree
class _Probe:
    """A policy that does as `policy`, remembers its action, and varies the dummy job's feedback."""

    policy: Any
    how: Array | int = NATURAL
    informed: bool = static(default=False)

    @property
    def retry_aware(self) -> bool:
        """Whether the policy asks which servers were shown for each waiting query."""
        return is_retry_aware(self.policy)

    def init(self, problem: Problem, contexts: Array) -> tuple[Any, Action]:
        """Return the policy's state and a blank action."""
        servers = jnp.zeros(problem.assortment_size, jnp.int32)
        blank = Action(jnp.zeros((), jnp.int32), servers, jnp.bool_(False))
        return self.policy.init(problem, contexts), blank

    def select(self, key: Array, state: tuple[Any, Action], observation: Observation) -> Action:
        """Do as the policy does."""
        return self.policy.select(key, state[0], observation)

    def update(
        self,
        state: tuple[Any, Action],
        observation: Observation,
        action: Action,
        feedback: Feedback,
    ) -> tuple[Any, Action]:
        """Learn as the policy does where a query was served, else in one of three ways."""
        told, answer = self._told(observation, action, feedback)
        after = self.policy.update(state[0], observation, told, answer)
        skipped = (self.how == SKIPPED) & ~feedback.valid
        kept = jax.tree.map(lambda old, new: jnp.where(skipped, old, new), state[0], after)
        return kept, action

    def _told(
        self, observation: Observation, action: Action, feedback: Feedback
    ) -> tuple[Action, Feedback]:
        """Return the action and the feedback that the policy is told of."""
        size, number = observation.problem.assortment_size, observation.problem.num_servers
        rank = observation.round % mnl.num_assortments(number, size)
        other = Action(action.slot, mnl.unrank_assortment(rank, number, size), ~action.explored)
        changed = (self.how == CHANGED) & ~feedback.valid
        told = jax.tree.map(lambda one, two: jnp.where(changed, two, one), action, other)
        choice = jnp.where(changed, (feedback.choice + 1) % (size + 1), feedback.choice)
        return told, feedback._replace(choice=choice)


def check_policy(
    policy: Policy,
    problem: Problem = PROBLEM,
    seed: int = 0,
    uncompiled: bool = True,
    checked: dict[Any, Any] | None = None,
) -> None:
    """Check a policy against the contract of `cqbjax.types.Policy`.

    The fields (a frozen pytree dataclass, floats as leaves, a hashable static part); the shapes and
    types of actions and states; purity; every decision of whole runs (K distinct increasing
    servers, a waiting query); that a run decides the same whatever else is in its batch, and alone
    without a compiler; and that feedback with `valid` False changes no later decision.

    Args:
        policy: what to check.
        problem: the shapes to check it with; keep its horizon short.
        seed: of the random worlds.
        uncompiled: whether to play the first rounds alone, operation by operation, too: it takes
            tens of seconds for the first policy with many operations.
        checked: programs of policies that were checked already; this one's is added. A policy that
            differs from one of them in numbers alone is the same program, with the same shapes and
            as pure, so only its fields and its decisions are left to check. Give it to the checks
            of one moment: code that changes in between is not seen.

    Raises:
        ContractError: for the first part that is broken, in one sentence.
    """
    check_fields(policy)
    checked = {} if checked is None else checked
    key = signature(policy), problem
    if key not in checked:
        world = jax.tree.map(operator.itemgetter(0), _instances(problem, seed, 1))
        check_shapes(policy, problem, world)
        check_pure(policy, problem, world)
        checked[key] = compile_runs(policy, problem)
    check_decisions(policy, problem, seed, uncompiled, checked[key])


def signature(policy: Policy) -> Any:
    """Return what of a policy fixes its program: structure, leaves' shapes and types, `informed`.

    Two policies of one signature differ in numbers alone, which programs take as arguments.
    """
    leaves, structure = jax.tree.flatten(policy)
    shapes = tuple((jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves)
    return structure, shapes, policy.informed


def check_fields(policy: Policy) -> None:
    """Check that floats are leaves, that the rest is static and hashable, and `informed`.

    Raises:
        ContractError: naming the field.
    """
    name = type(policy).__name__
    frozen = dataclasses.is_dataclass(policy) and type(policy).__dataclass_params__.frozen
    _require(frozen, f"{name} must be a frozen dataclass: decorate it with cqbjax.pytree.pytree")
    leaves, _ = jax.tree_util.tree_flatten_with_path(policy)
    _require(
        not any(leaf is policy for _, leaf in leaves),
        f"{name} must be registered as a pytree: decorate it with cqbjax.pytree.pytree",
    )
    for path, leaf in leaves:
        field = name + jax.tree_util.keystr(path)
        _require(
            # A NumPy integer is the number of a word that is data of a run.
            isinstance(leaf, np.int32) or jnp.issubdtype(jnp.result_type(leaf), jnp.floating)
            if isinstance(leaf, bool | int | float | np.ndarray | np.generic | Array)
            else False,
            f"{field} is {leaf!r}: a leaf must be a float (write 1.0 for 1), and what fixes a "
            "shape or chooses code must be declared with cqbjax.pytree.static",
        )
    for part in dataclasses.fields(cast(Any, policy)):
        if part.metadata.get("static"):
            try:
                hash(getattr(policy, part.name))
            except TypeError as error:
                raise ContractError(
                    f"{name}.{part.name} is static and must be hashable: {error}"
                ) from error
    told = getattr(policy, "informed", None)
    _require(isinstance(told, bool), f"{name}.informed must be True or False, and it is {told!r}")


def check_shapes(policy: Policy, problem: Problem, instance: simulate.Instance) -> None:
    """Check the shapes and types of an action, and that a state keeps its own over a round.

    Raises:
        ContractError: naming the part.
    """

    def one_round(policy: Policy) -> tuple[Any, Action, Any]:
        carry = simulate.start(policy, problem, instance, problem.horizon)
        seen = simulate.observe(policy, problem, instance, carry, jnp.int32(1))
        action = policy.select(rng.run_key(0), carry.state, seen)
        feedback = Feedback(jnp.int32(0), jnp.bool_(True))
        return carry.state, action, policy.update(carry.state, seen, action, feedback)

    before, action, after = jax.eval_shape(one_round, policy)
    wanted = {
        "slot": ((), jnp.int32),
        "servers": ((problem.assortment_size,), jnp.int32),
        "explored": ((), jnp.bool_),
    }
    for part, (shape, dtype) in wanted.items():
        found = getattr(action, part)
        _require(
            found.shape == shape and found.dtype == dtype,
            f"Action.{part} must be {jnp.dtype(dtype)}{list(shape)}, and select returns "
            f"{found.dtype}{list(found.shape)}",
        )
    _require(
        str(jax.tree.structure(before)) == str(jax.tree.structure(after)),
        "update must return a state of the structure that init returns",
    )
    pairs = zip(jax.tree_util.tree_leaves_with_path(before), jax.tree.leaves(after), strict=True)
    for (path, old), new in pairs:
        _require(
            (old.shape, old.dtype) == (new.shape, new.dtype),
            f"update must keep shapes and types, and state{jax.tree_util.keystr(path)} turns from "
            f"{old.dtype}{list(old.shape)} to {new.dtype}{list(new.shape)}",
        )


def check_pure(policy: Policy, problem: Problem, instance: simulate.Instance) -> None:
    """Check that tracing a round twice gives the same program: no hidden state, no other random.

    Raises:
        ContractError: if the programs differ.
    """

    def one_round(policy: Policy, round_: Array) -> Any:
        carry = simulate.start(policy, problem, instance, problem.horizon)
        return simulate.run_round(policy, problem, instance, carry, round_)

    first, second = (jax.make_jaxpr(lambda *a: one_round(*a))(policy, 1) for _ in range(2))
    same = str(first) == str(second) and all(
        np.array_equal(_raw(a), _raw(b)) for a, b in zip(first.consts, second.consts, strict=True)
    )
    _require(same, "select and update must be pure: tracing them twice gives different programs")


def check_decisions(
    policy: Policy,
    problem: Problem,
    seed: int = 0,
    uncompiled: bool = True,
    program: Any = None,
) -> None:
    """Check every decision of whole runs, alone and in a batch.

    Args:
        policy: what to check.
        problem: the shapes.
        seed: of the random worlds.
        uncompiled: whether to play the first rounds alone and without a compiler too.
        program: what `compile_runs` returns for a policy of this signature; None compiles it.

    Raises:
        ContractError: naming the round.
    """
    program = program or compile_runs(policy, problem)
    both = _instances(problem, seed, 2)
    batch = jax.tree.map(lambda leaf: leaf[jnp.asarray(BATCH)], both)
    numbers = _arrays(policy)
    shown = jax.tree.map(np.asarray, program(numbers, jnp.asarray(HOW), batch))
    for row in range(len(BATCH)):
        _check_run(problem, jax.tree.map(operator.itemgetter(row), shown))
    _check_dummy_job(shown)
    # The last run's companions live in another world; now it is its own companion.
    copies = jax.tree.map(lambda leaf: jnp.stack([leaf[-1]] * len(BATCH)), batch)
    natural = jnp.full(len(BATCH), NATURAL)
    found = _first_difference(shown, -1, program(numbers, natural, copies), 0)
    _require(
        found is None,
        f"a run must not depend on its batch, and its decision of round {found} does",
    )
    if uncompiled:
        last, of_last = (jax.tree.map(operator.itemgetter(-1), tree) for tree in (both, shown))
        _check_alone(policy, problem, last, of_last)


def compile_runs(policy: Policy, problem: Problem) -> Any:
    """Compile the batch of whole runs of `check_decisions`, for all policies of one signature.

    Returns:
        (policy with arrays for leaves, how each run is told of rounds without a query, instances)
        -> what each run shows.
    """

    def play(policy: Policy, how: Array, instance: simulate.Instance) -> _Shown:
        probe: Any = _Probe(policy=policy, how=how, informed=policy.informed)
        rounds = jnp.arange(1, problem.horizon + 1, dtype=jnp.int32)

        def one(carry: simulate.Carry, round_: Array) -> tuple[simulate.Carry, _Shown]:
            return _advance(probe, problem, instance, carry, round_)

        return jax.lax.scan(one, simulate.start(probe, problem, instance, problem.horizon), rounds)[
            1
        ]

    batch = _instances(problem, 0, len(BATCH))
    batched = jax.jit(jax.vmap(play, in_axes=(None, 0, 0)))
    lowered = batched.lower(_arrays(policy), jnp.asarray(HOW), batch)
    return lowered.compile(compiler_options=QUICKLY)


def _arrays(policy: Policy) -> Policy:
    """Return the policy with an array for every leaf, of the leaf's own type."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.result_type(leaf)), policy)


def _advance(
    probe: Any, problem: Problem, instance: simulate.Instance, carry: simulate.Carry, t: Array
) -> tuple[simulate.Carry, _Shown]:
    """Play one round and keep what the checks look at."""
    after, decision = simulate.run_round(probe, problem, instance, carry, t)
    action = decision.state[1]
    return after, _Shown(action, carry.queue.arrived, decision._replace(state=()))


def _check_run(problem: Problem, shown: _Shown) -> None:
    """Check that each round serves a waiting query with K distinct servers in increasing order."""
    servers, slots = shown.action.servers, shown.action.slot
    number, size = problem.num_servers, problem.assortment_size
    for t in range(problem.horizon):
        chosen = servers[t].tolist()
        good = chosen == sorted(set(chosen)) and chosen[0] >= 0 and chosen[-1] < number
        _require(
            good,
            f"select must return {size} distinct server numbers in 0..{number - 1}, increasing, "
            f"and in round {t + 1} it returns {chosen}",
        )
        slot, arrived = int(slots[t]), shown.arrived[t]
        _require(
            not shown.decision.valid[t] or bool(0 <= slot < len(arrived) and arrived[slot] > 0),
            f"select must pick a waiting query, and slot {slot} of round {t + 1} holds none",
        )


def _check_dummy_job(shown: _Shown) -> None:
    """Check that what is told in rounds without a query changes no later decision."""
    valid = shown.decision.valid[0]
    if valid.all() or not valid.any():
        raise ValueError("the check needs rounds with and without a query: use a longer horizon")
    kinds = {1: "leaving out update", 2: "another action and choice"}
    for row, kind in kinds.items():
        found = _first_difference(shown, 0, shown, row)
        _require(
            found is None,
            f"feedback with valid=False must teach nothing, and {kind} in rounds without a query "
            f"changes the decision of round {found}",
        )


def _check_alone(
    policy: Policy, problem: Problem, instance: simulate.Instance, batched: _Shown
) -> None:
    """Check that a run alone, operation by operation, decides as in the compiled batch."""
    probe: Any = _Probe(policy=policy, how=jnp.asarray(NATURAL), informed=policy.informed)
    rounds = min(UNCOMPILED_ROUNDS, problem.horizon)
    with jax.disable_jit():
        carry, alone = simulate.start(probe, problem, instance, problem.horizon), []
        for t in range(1, rounds + 1):
            carry, shown = _advance(probe, problem, instance, carry, jnp.int32(t))
            alone.append(shown)
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves)[None], *alone)
    part = jax.tree.map(lambda leaf: leaf[None, :rounds], batched)
    found = _first_difference(stacked, 0, part, 0)
    _require(
        found is None,
        f"a run alone, uncompiled, must decide as in a batch, and differs in round {found}",
    )


def _first_difference(one: _Shown, i: int, two: _Shown, j: int) -> int | None:
    """Return the first round in which two runs decide differently, None if they never do."""
    a, b = (
        (shown.decision.valid[row], shown.decision.query[row], shown.action.servers[row],
         shown.action.explored[row])
        for shown, row in ((one, i), (two, j))
    )  # fmt: skip
    differs = (a[0] != b[0]) | (
        a[0] & ((a[1] != b[1]) | (a[2] != b[2]).any(axis=-1) | (a[3] != b[3]))
    )
    return int(np.argmax(differs)) + 1 if differs.any() else None


def _instances(problem: Problem, seed: int, count: int) -> simulate.Instance:
    """Draw random worlds in which the queue is often empty and often not: leaves [count, ...]."""
    if problem.num_rows < (1 if problem.pooled else problem.horizon):
        raise ValueError(
            f"num_rows={problem.num_rows} must reach horizon={problem.horizon}, unless pooled"
        )
    each = [_instance(problem, seed, number) for number in range(count)]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *each)


def _instance(problem: Problem, seed: int, number: int) -> simulate.Instance:
    """Draw one world by NumPy, so that it does not lean on what is checked."""
    draw = np.random.default_rng([seed, number])
    rows, servers, dim = problem.num_rows, problem.num_servers, problem.dim
    if problem.parameters == "disjoint":
        contexts = draw.normal(size=(rows, dim))
        utilities = contexts @ draw.normal(size=(dim, servers))
    else:
        contexts = draw.normal(size=(rows, servers, dim))
        utilities = contexts @ draw.normal(size=dim)
    arriving = draw.integers(rows, size=problem.horizon)
    if not problem.pooled:
        arriving = np.arange(problem.horizon)
    world = World(
        jnp.asarray(contexts, float),
        jnp.asarray(utilities + 1.0, float),
        jnp.asarray(arriving, jnp.int32),
        jnp.arange(rows, dtype=jnp.int32),
    )
    arrives = jnp.asarray(draw.uniform(size=problem.horizon) < ARRIVAL_RATE)
    choice = jnp.asarray(draw.uniform(size=problem.horizon), float)
    return simulate.Instance(rng.run_key(1000 * seed + number), world, arrives, choice)


def _raw(value: Any) -> np.ndarray:
    """Return an array's numbers, a key's bits included."""
    if isinstance(value, Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    return np.asarray(value)


def _require(holds: bool, otherwise: str) -> None:
    """Raise where a part of the contract does not hold."""
    if not holds:
        raise ContractError(otherwise)
