"""Checks that an entry of the arena does not know users' preferences or recognise a run.

`check_fairness` checks a policy in seconds. Whole runs reveal more, so the arena repeats them. With
`run_isolated` a policy cannot read hidden utilities from the frames of its callers. On other seeds
and with `PermutedServers`, a policy that recognises runs does worse, and a policy that learns does
equally well.
"""

import dataclasses
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend.core import jaxpr_as_fun

from cqbjax.core import simulate
from cqbjax.core.contract import prefix_errors, require
from cqbjax.core.pytree import as_arrays, pytree, static
from cqbjax.core.scenario import Scenario
from cqbjax.core.types import (
    Action,
    AnswerCosts,
    Feedback,
    Observation,
    Policy,
    Problem,
    Source,
    Workload,
    Wrapper,
    read_needs,
)
from cqbjax.sources.preference_drift import SourceWrapper
from cqbjax.testing.instances import PROBLEM, draw_instances
from cqbjax.testing.policies import NATURAL, compile_runs

# Utilities so high that every answer of every LLM is accepted.
ALL_SATISFY = 30.0
SINGLE = PROBLEM._replace(assortment_size=1)


def check_fairness(policy: Policy, seed: int = 0, problem: Problem = SINGLE) -> None:
    """Check that a policy uses only what a contestant may see.

    The policy must not declare `Needs(true_utilities=True)`, nor call back into Python, where it
    could store data between runs. The check also simulates users whom every answer satisfies, so
    that feedback reveals nothing about the LLMs. With these users the decisions must not depend on
    the true utilities.

    Args:
        policy: the policy to check.
        seed: seed of the random instances.
        problem: the shapes, with K = 1 and one channel.

    Raises:
        ContractError: in one sentence.
    """
    require(not read_needs(policy).true_utilities, "a contestant must not need the true utilities")
    instance = jax.tree.map(operator.itemgetter(0), draw_instances(problem, seed, 1))

    def play(policy: Policy) -> Any:
        carry = simulate.start(policy, problem, instance, problem.horizon)
        return simulate.run_round(policy, problem, instance, carry, jnp.int32(1))

    _require_pure_jax(jax.make_jaxpr(play)(as_arrays(policy)))
    batch = draw_instances(problem, seed, 4)
    # Four copies of one instance that differ only in the true utilities.
    same = jax.tree.map(lambda leaf: jnp.stack([leaf[0]] * 4), batch)
    hidden = jnp.argsort(batch.workload.utilities, axis=-1) + ALL_SATISFY
    copies = same._replace(workload=same.workload._replace(utilities=hidden.astype(float)))
    played = compile_runs(policy, problem)(as_arrays(policy), jnp.full(4, NATURAL), copies)
    for part in (played.action.slot, played.action.servers):
        decided = np.where(played.decision.valid[(...,) + (None,) * (part.ndim - 2)], part, 0)
        require(
            bool((decided == decided[:1]).all()),
            "a contestant must not see the true utilities: its decisions depend on them although "
            "every answer satisfies",
        )


class TracedMethods:
    """Programs of a policy's methods by call, and the calls without a program; hashed by identity.

    A call consists of the method and of the structure, static parts and array types of its
    arguments.
    """

    def __init__(self, programs: Mapping[Any, Any]) -> None:
        self.programs, self.missing = programs, set[Any]()


@pytree
class IsolatedPolicy(Wrapper):
    """A policy whose methods were traced outside a run, where no frame holds a run's utilities.

    Attributes:
        policy: the policy within.
        traced: its programs; a call without one goes to the policy, and is noted as missing.
    """

    policy: Any
    traced: TracedMethods = static()

    def init(self, problem: Problem, contexts: Array) -> Any:
        """Return the state of the policy within."""
        return self._call("init", problem, contexts)

    def select(self, key: Array, state: Any, observation: Observation) -> Action:
        """Let the policy within decide."""
        action: Action = self._call("select", key, state, observation)
        return action

    def update(
        self, state: Any, observation: Observation, action: Action, feedback: Feedback
    ) -> Any:
        """Let the policy within learn."""
        return self._call("update", state, observation, action, feedback)

    def _call(self, method: str, *arguments: Any) -> Any:
        leaves, structure = jax.tree.flatten((self.policy, arguments))
        arrays = [leaf for leaf in leaves if hasattr(leaf, "dtype")]
        fixed = tuple(None if hasattr(leaf, "dtype") else leaf for leaf in leaves)
        call = method, structure, fixed, tuple(map(jax.typeof, arrays))
        if call not in self.traced.programs:
            self.traced.missing.add(call)
            return getattr(self.policy, method)(*arguments)
        program, returned = self.traced.programs[call]
        return jax.tree.unflatten(returned, jaxpr_as_fun(program)(*arrays))


def run_isolated(policy: Policy, *runs: Callable[[Policy], Any]) -> Any:
    """Run a policy that cannot read a run's hidden data from the frames of its callers.

    Each run repeats until every call of the policy has been traced outside a run. The programs are
    those of the policy, so an honest policy decides the same bit for bit.

    Args:
        policy: the policy.
        runs: functions that run a policy; short runs first find most calls.

    Returns:
        What the last run returns.

    Raises:
        ContractError: a method calls back into Python, or raises outside a run.
    """
    programs, left, result = dict[Any, Any](), list(runs), None
    while left:
        methods = TracedMethods(programs)
        result = left[0](IsolatedPolicy(policy=policy, traced=methods))
        programs |= {call: _trace_method(*call) for call in methods.missing}
        left = left if methods.missing else left[1:]
    return result


def _trace_method(method: str, structure: Any, fixed: Sequence[Any], types: Sequence[Any]) -> Any:
    """Return the program of a policy's method, and the structure of what it returns."""

    def call(*arrays: Array) -> Any:
        rest = iter(arrays)
        leaves = [next(rest) if leaf is None else leaf for leaf in fixed]
        policy, arguments = jax.tree.unflatten(structure, leaves)
        return getattr(policy, method)(*arguments)

    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype, weak_type=x.weak_type) for x in types]
    with prefix_errors(f"{method}, traced outside a run"):
        program, returned = jax.make_jaxpr(call, return_shape=True)(*shapes)
    _require_pure_jax(program)
    return program, jax.tree.structure(returned)


def _require_pure_jax(program: Any) -> None:
    require(
        "callback" not in str(program),
        "a contestant must compute in JAX alone: a Python callback can store hidden information",
    )


@pytree
class PermutedServers(SourceWrapper):
    """A source whose LLMs are renumbered, with the same queries, users and arrivals.

    Attributes:
        source: the source within.
        order: [N] for each LLM here, its number in the source within.
    """

    source: Any
    order: tuple[int, ...] = static(default=())

    @property
    def draw_arrivals(self) -> Any:
        """The arrivals of the source within; AttributeError if it does not draw its own."""
        return self.source.draw_arrivals

    @property
    def process(self) -> Any:
        """The arrival process of the source within; AttributeError if it has none."""
        return self.source.process

    def check(self, seeds: np.ndarray, arrival_rate: float, K: int, *channels: int) -> None:
        """Validate the source within."""
        self.source.check(seeds, arrival_rate, K, *channels)

    def draw_workload(self, key: Array, arrival_rate: Array, problem: Problem) -> Workload:
        """Draw the workload of the source within, and renumber its LLMs."""
        workload: Workload = self.source.draw_workload(key, arrival_rate, problem)
        order = jnp.asarray(self.order)
        contexts, drift, costs = workload.contexts, workload.drift, workload.answer_costs
        if problem.parameters == "shared":
            contexts = contexts[:, order]
        if drift is not None:
            drift = drift._replace(other=drift.other[:, order])
        if costs is not None:
            costs = AnswerCosts(costs.dollars[:, order], costs.scores[:, order])
        utilities = workload.utilities[:, order]
        return workload._replace(
            contexts=contexts, utilities=utilities, drift=drift, answer_costs=costs
        )


def permute_servers(source: Source, order: tuple[int, ...]) -> Source:
    """Return a source with its LLMs in another order; its dynamics stay unchanged."""
    if isinstance(source, Scenario):
        return dataclasses.replace(
            source, source=PermutedServers(source=source.source, order=order)
        )
    return PermutedServers(source=source, order=order)
