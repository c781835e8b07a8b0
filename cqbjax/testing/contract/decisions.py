"""Every decision of whole runs, in a batch and alone."""

import operator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax.core import contract, simulate
from cqbjax.core.contract import ContractError, require
from cqbjax.core.types import Action, Policy, Problem
from cqbjax.testing.compiling import QUICKLY
from cqbjax.testing.contract.instances import draw_instances
from cqbjax.testing.contract.probe import CHANGED, NATURAL, SKIPPED, Probe

# Rounds that are played again without any compiler, operation by operation.
UNCOMPILED_ROUNDS = 6
# The batch of runs: which world each is in, and what it is told.
BATCH = (0, 0, 0, 1)
HOW = (NATURAL, SKIPPED, CHANGED, NATURAL)


class _Shown(NamedTuple):
    """One round as the checks see it: the policy's action, what was waiting, what came of it."""

    action: Action
    arrived: Array
    decision: simulate.Decision


def check_decisions(
    policy: Policy, problem: Problem, seed: int = 0, uncompiled: bool = True, program: Any = None
) -> None:
    """Check every decision of whole runs, alone and in a batch.

    Args:
        policy: what to check.
        problem: the shapes.
        seed: of the random worlds.
        uncompiled: whether to play the first rounds alone and without a compiler too.
        program: what `compile_runs` returns for a policy of this kind; None compiles it.

    Raises:
        ContractError: naming the round.
    """
    program = program or compile_runs(policy, problem)
    both = draw_instances(problem, seed, 2)
    batch = jax.tree.map(lambda leaf: leaf[jnp.asarray(BATCH)], both)
    numbers = _arrays(policy)
    shown = jax.tree.map(np.asarray, program(numbers, jnp.asarray(HOW), batch))
    for row in range(len(BATCH)):
        _check_run(problem, jax.tree.map(operator.itemgetter(row), shown))
    _check_dummy_job(shown)
    # The last run's companions live in another world; now it is its own companion.
    copies = jax.tree.map(lambda leaf: jnp.stack([leaf[-1]] * len(BATCH)), batch)
    natural = jnp.full(len(BATCH), NATURAL)
    differing = _first_difference(shown, -1, program(numbers, natural, copies), 0)
    require(
        differing is None,
        f"a run must not depend on its batch, and its decision of round {differing} does",
    )
    if uncompiled:
        last, of_last = (jax.tree.map(operator.itemgetter(-1), tree) for tree in (both, shown))
        _check_alone(policy, problem, last, of_last)


def compile_runs(policy: Policy, problem: Problem) -> Any:
    """Compile the batch of whole runs of `check_decisions`, for all policies of one kind.

    Returns:
        (policy with arrays for leaves, how each run is told of rounds without a query, instances)
        -> what each run shows.
    """

    def play(policy: Policy, how: Array, instance: simulate.Instance) -> _Shown:
        probe: Any = Probe(policy=policy, how=how)
        rounds = jnp.arange(1, problem.horizon + 1, dtype=jnp.int32)

        def one(carry: simulate.Carry, round_: Array) -> tuple[simulate.Carry, _Shown]:
            return _advance(probe, problem, instance, carry, round_)

        return jax.lax.scan(one, simulate.start(probe, problem, instance, problem.horizon), rounds)[
            1
        ]

    batch = draw_instances(problem, 0, len(BATCH))
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
    servers, slots = np.asarray(contract.offered_servers(shown.action)), shown.action.slot
    fine = np.asarray(contract.are_valid_servers(jnp.asarray(servers), problem.num_servers))
    here = np.asarray(contract.holds_query(jnp.asarray(slots), jnp.asarray(shown.arrived)))
    for t in np.flatnonzero(~fine | (shown.decision.valid & ~here))[:1]:
        raise ContractError(contract.describe_breach(problem, t + 1, int(slots[t]), servers[t]))


def _check_dummy_job(shown: _Shown) -> None:
    """Check that what is told in rounds without a query changes no later decision."""
    valid = shown.decision.valid[0]
    if valid.all() or not valid.any():
        raise ValueError("the check needs rounds with and without a query: use a longer horizon")
    kinds = {1: "leaving out update", 2: "another action and choice"}
    for row, kind in kinds.items():
        differing = _first_difference(shown, 0, shown, row)
        require(
            differing is None,
            f"feedback with valid=False must teach nothing, and {kind} in rounds without a query "
            f"changes the decision of round {differing}",
        )


def _check_alone(
    policy: Policy, problem: Problem, instance: simulate.Instance, batched: _Shown
) -> None:
    """Check that a run alone, operation by operation, decides as in the compiled batch."""
    probe: Any = Probe(policy=policy, how=jnp.asarray(NATURAL))
    rounds = min(UNCOMPILED_ROUNDS, problem.horizon)
    with jax.disable_jit():
        carry, alone = simulate.start(probe, problem, instance, problem.horizon), []
        for t in range(1, rounds + 1):
            carry, shown = _advance(probe, problem, instance, carry, jnp.int32(t))
            alone.append(shown)
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves)[None], *alone)
    part = jax.tree.map(lambda leaf: leaf[None, :rounds], batched)
    differing = _first_difference(stacked, 0, part, 0)
    require(
        differing is None,
        f"a run alone, uncompiled, must decide as in a batch, and differs in round {differing}",
    )


def _first_difference(one: _Shown, i: int, two: _Shown, j: int) -> int | None:
    """Return the first round in which two runs decide differently, None if they never do."""
    a, b = (
        (shown.decision.valid[row], shown.decision.query[row], shown.decision.servers[row],
         shown.action.explored[row])
        for shown, row in ((one, i), (two, j))
    )  # fmt: skip
    differs = (a[0] != b[0]) | (
        a[0] & ((a[1] != b[1]) | (a[2] != b[2]).any(axis=-1) | (a[3] != b[3]))
    )
    return int(np.argmax(differs)) + 1 if differs.any() else None
