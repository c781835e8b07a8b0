"""Checks of a policy: its fields, that it is pure, and every decision of whole runs.

The policy plays small random workloads through the simulator's own round, so that what passes here
runs in `sweep`.
"""

import dataclasses
import functools
import operator
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax.core import conformance, contract, mnl, simulate
from cqbjax.core.contract import ContractError, check_class, require
from cqbjax.core.pytree import as_arrays, pytree
from cqbjax.core.types import (
    Action,
    Feedback,
    Observation,
    Policy,
    Problem,
    Wrapper,
    blank_action,
    read_needs,
)
from cqbjax.testing.instances import FAST_COMPILE_OPTIONS, PROBLEM, draw_instances

# What a policy receives in a round without a query: as in the simulator, no call of `update`, or
# another action and choice. Its decisions must not depend on this.
NATURAL, SKIPPED, CHANGED = 0, 1, 2


@pytree
class Probe(Wrapper):
    """A policy that decides as `policy` does, and stores its action.

    In a round with an empty queue, `how` determines what `update` of the policy receives.
    """

    policy: Any
    how: Array | int = NATURAL

    def init(self, problem: Problem, contexts: Array) -> tuple[Any, Action]:
        """Return the policy's state and a blank action."""
        marked = read_needs(self.policy).smaller_assortments
        blank = blank_action(problem.assortment_size, marked)
        return self.policy.init(problem, contexts), blank

    def select(self, key: Array, state: tuple[Any, Action], observation: Observation) -> Action:
        """Let the policy within decide."""
        return self.policy.select(key, state[0], observation)

    def update(
        self,
        state: tuple[Any, Action],
        observation: Observation,
        action: Action,
        feedback: Feedback,
    ) -> tuple[Any, Action]:
        """Update the policy. In a round without a query, `how` selects the kind of update."""
        size, number = observation.problem.assortment_size, observation.problem.num_servers
        rank = observation.round % mnl.num_assortments(number, size)
        servers = mnl.unrank_assortment(rank, number, size)
        other = action._replace(servers=servers, explored=~action.explored)
        changed = (self.how == CHANGED) & ~feedback.valid
        reported = jax.tree.map(lambda old, new: jnp.where(changed, new, old), action, other)
        choice = jnp.where(changed, (feedback.choice + 1) % (size + 1), feedback.choice)
        after = self.policy.update(
            state[0], observation, reported, feedback._replace(choice=choice)
        )
        skipped = (self.how == SKIPPED) & ~feedback.valid
        return jax.tree.map(lambda old, new: jnp.where(skipped, old, new), state[0], after), action


def check_fields(policy: Policy) -> None:
    """Check that floats are leaves, that the rest is static and hashable, and `needs`.

    Raises:
        ContractError: naming the field.
    """
    name = type(policy).__name__
    frozen = dataclasses.is_dataclass(policy) and type(policy).__dataclass_params__.frozen
    require(frozen, f"{name} must be a frozen dataclass: decorate it with core.pytree.pytree")
    check_class(policy)
    leaves, _ = jax.tree_util.tree_flatten_with_path(policy)
    for path, leaf in leaves:
        field = name + jax.tree_util.keystr(path)
        require(
            # A NumPy integer is the index of an `option`.
            isinstance(leaf, np.int32) or jnp.issubdtype(jnp.result_type(leaf), jnp.floating)
            if isinstance(leaf, bool | int | float | np.ndarray | np.generic | Array)
            else False,
            f"{field} is {leaf!r}: a leaf must be a float (write 1.0 for 1), and what fixes a "
            "shape or chooses code must be declared with cqbjax.core.pytree.static",
        )
    for part in dataclasses.fields(cast(Any, policy)):
        if part.metadata.get("static"):
            try:
                hash(getattr(policy, part.name))
            except TypeError as error:
                raise ContractError(
                    f"{name}.{part.name} is static and must be hashable: {error}"
                ) from error


# The batch of runs: the instance of each, and its feedback in rounds without a query.
BATCH = (0, 0, 0, 1)
HOW = (NATURAL, SKIPPED, CHANGED, NATURAL)


class PlayedRound(NamedTuple):
    """One round as the checks see it: the action, the queue's arrival rounds, and the outcome."""

    action: Action
    arrived: Array
    decision: simulate.Decision


def check_decisions(policy: Policy, problem: Problem, seed: int = 0, program: Any = None) -> None:
    """Check every decision of whole runs, alone and in a batch.

    Args:
        policy: the policy to check.
        problem: the shapes.
        seed: seed of the random instances.
        program: from `compile_runs` for a policy with the same structure; None compiles it.

    Raises:
        ContractError: naming the round.
    """
    program = program or compile_runs(policy, problem)
    both = draw_instances(problem, seed, 2)
    batch = jax.tree.map(lambda leaf: leaf[jnp.asarray(BATCH)], both)
    arrays = as_arrays(policy)
    played = jax.tree.map(np.asarray, program(arrays, jnp.asarray(HOW), batch))
    for row in range(len(BATCH)):
        _check_run(problem, jax.tree.map(operator.itemgetter(row), played))
    _check_dummy_job(played)
    # The last run is repeated in a batch of copies of itself.
    copies = jax.tree.map(lambda leaf: jnp.stack([leaf[-1]] * len(BATCH)), batch)
    natural = jnp.full(len(BATCH), NATURAL)
    differing = _first_difference(played, -1, program(arrays, natural, copies), 0)
    require(
        differing is None,
        f"a run must not depend on its batch, and its decision of round {differing} does",
    )


def compile_runs(policy: Policy, problem: Problem) -> Any:
    """Compile the runs of `check_decisions`, for all policies that differ only in numbers.

    Returns:
        A function (policy with arrays for leaves, `NATURAL`, `SKIPPED` or `CHANGED` for each run,
        instances) -> what the checks read of each run.
    """

    def play(policy: Policy, how: Array, instance: simulate.Instance) -> PlayedRound:
        probe: Any = Probe(policy=policy, how=how)
        rounds = jnp.arange(1, problem.horizon + 1, dtype=jnp.int32)
        advance = functools.partial(_advance, probe, problem, instance)
        start = simulate.start(probe, problem, instance, problem.horizon)
        return jax.lax.scan(advance, start, rounds)[1]

    batch = draw_instances(problem, 0, len(BATCH))
    batched = jax.jit(jax.vmap(play, in_axes=(None, 0, 0)))
    lowered = batched.lower(as_arrays(policy), jnp.asarray(HOW), batch)
    return lowered.compile(compiler_options=FAST_COMPILE_OPTIONS)


def _advance(
    probe: Any, problem: Problem, instance: simulate.Instance, carry: simulate.Carry, t: Array
) -> tuple[simulate.Carry, PlayedRound]:
    """Play one round."""
    after, decision = simulate.run_round(probe, problem, instance, carry, t)
    action = decision.state[1]
    return after, PlayedRound(action, carry.queue.arrived, decision._replace(state=()))


def _check_run(problem: Problem, played: PlayedRound) -> None:
    """Check that each round serves a waiting query with K distinct servers in increasing order."""
    servers, slots = np.asarray(contract.offered_servers(played.action)), played.action.slot
    right = np.asarray(contract.are_valid_servers(jnp.asarray(servers), problem.num_servers))
    waits = np.asarray(contract.holds_query(jnp.asarray(slots), jnp.asarray(played.arrived)))
    for t in np.flatnonzero(~right | (played.decision.valid & ~waits))[:1]:
        raise ContractError(contract.describe_breach(problem, t + 1, int(slots[t]), servers[t]))


def _check_dummy_job(played: PlayedRound) -> None:
    """Check that feedback in rounds without a query changes no later decision."""
    valid = played.decision.valid[0]
    if valid.all() or not valid.any():
        raise ValueError("the check needs rounds with and without a query: use a longer horizon")
    changes = {1: "leaving out update", 2: "another action and choice"}
    for row, change in changes.items():
        differing = _first_difference(played, 0, played, row)
        require(
            differing is None,
            f"feedback with valid=False must teach nothing, and {change} in rounds without a query "
            f"changes the decision of round {differing}",
        )


def _first_difference(first: PlayedRound, i: int, second: PlayedRound, j: int) -> int | None:
    """Return the first round in which two runs decide differently; None if they agree."""
    a, b = (
        (played.decision.valid[row], played.decision.query[row], played.decision.servers[row],
         played.action.explored[row])
        for played, row in ((first, i), (second, j))
    )  # fmt: skip
    differs = (a[0] != b[0]) | (
        a[0] & ((a[1] != b[1]) | (a[2] != b[2]).any(axis=-1) | (a[3] != b[3]))
    )
    return int(np.argmax(differs)) + 1 if differs.any() else None


def check_policy(policy: Policy, problem: Problem | None = None, seed: int = 0) -> None:
    """Check a policy against the contract of `cqbjax.core.types.Policy`.

    Checks that:

    - the class is a frozen pytree dataclass, with floats as leaves and a hashable static part;
    - actions and states keep their shapes and types;
    - `select` and `update` are pure;
    - every decision of whole runs is a waiting query and K distinct servers in increasing order;
    - decisions do not depend on the other runs of a batch;
    - feedback with `valid` False does not change later decisions.

    Args:
        policy: the policy to check.
        problem: the shapes to check it with; keep its horizon short. None: `PROBLEM`, with K = 1
            if the policy's method `check` rejects K = 2.
        seed: seed of the random instances.

    Raises:
        ContractError: for the first part that is broken, in one sentence.
    """
    check_fields(policy)
    if problem is None:
        single = contract.policy_error(policy, PROBLEM) is not None
        problem = PROBLEM._replace(assortment_size=1) if single else PROBLEM
    conformance.check_policy(policy, problem)
    check_decisions(policy, problem, seed)
