"""Checks that an entry of the arena does not know users' preferences or recognise a run.

`check_fairness` checks a policy in seconds. A policy that recognises a run by its keys or its
contexts could look up the hidden utilities; only whole runs reveal this. So the arena repeats runs
with `MaskedKeys` and with `PermutedServers`, where a policy that learns does equally well.
"""

import dataclasses
import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax.core import rng, simulate
from cqbjax.core.contract import require
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


def check_fairness(policy: Policy, seed: int = 0) -> None:
    """Check that a policy uses only what a contestant may see.

    The policy must not declare `Needs(true_utilities=True)`, nor call back into Python, where it
    could store data between runs. If every answer satisfies, so that feedback reveals nothing about
    the LLMs, its decisions must not depend on the true utilities.

    Args:
        policy: the policy to check, with K = 1.
        seed: seed of the random instances.

    Raises:
        ContractError: in one sentence.
    """
    require(not read_needs(policy).true_utilities, "a contestant must not need the true utilities")
    instance = jax.tree.map(operator.itemgetter(0), draw_instances(SINGLE, seed, 1))

    def play(policy: Policy) -> Any:
        carry = simulate.start(policy, SINGLE, instance, SINGLE.horizon)
        return simulate.run_round(policy, SINGLE, instance, carry, jnp.int32(1))

    require(
        "callback" not in str(jax.make_jaxpr(play)(as_arrays(policy))),
        "a contestant must compute in JAX alone: a Python callback can store hidden information",
    )
    batch = draw_instances(SINGLE, seed, 4)
    # Four copies of one instance that differ only in the true utilities.
    same = jax.tree.map(lambda leaf: jnp.stack([leaf[0]] * 4), batch)
    hidden = jnp.argsort(batch.workload.utilities, axis=-1) + ALL_SATISFY
    copies = same._replace(workload=same.workload._replace(utilities=hidden.astype(float)))
    played = compile_runs(policy, SINGLE)(as_arrays(policy), jnp.full(4, NATURAL), copies)
    for part in (played.action.slot, played.action.servers):
        decided = np.where(played.decision.valid[(...,) + (None,) * (part.ndim - 2)], part, 0)
        require(
            bool((decided == decided[:1]).all()),
            "a contestant must not see the true utilities: its decisions depend on them although "
            "every answer satisfies",
        )


@pytree
class MaskedKeys(Wrapper):
    """A policy with other random keys, from which it cannot recognise a run.

    Attributes:
        policy: the policy within.
        mask: number folded into each key.
    """

    policy: Any
    mask: int = static(default=1)

    def init(self, problem: Problem, contexts: Array) -> Any:
        """Return the state of the policy within."""
        return self.policy.init(problem, contexts)

    def select(self, key: Array, state: Any, observation: Observation) -> Action:
        """Let the policy within decide, with another key."""
        return self.policy.select(jax.random.fold_in(key, self.mask), state, observation)

    def update(
        self, state: Any, observation: Observation, action: Action, feedback: Feedback
    ) -> Any:
        """Let the policy within learn."""
        return self.policy.update(state, observation, action, feedback)


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

    def check(self, seeds: np.ndarray, arrival_rate: float, K: int) -> None:
        """Validate the source within."""
        self.source.check(seeds, arrival_rate, K)

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


def run_mask(seed: int) -> int:
    """Return a mask that differs from every number folded into a key in a run."""
    return 2**30 + seed + len(rng.Stream)
