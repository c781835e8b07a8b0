"""What an entry of the arena must not know: the preferences of users, and which run it plays.

`check_fairness` validates a policy in seconds. A policy that recognises a run by its keys or its
contexts could look up the hidden utilities; only whole runs reveal this. So the arena repeats runs
with `MaskedKeys` and with `PermutedServers`: a policy that learns does as well there.
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
    Feedback,
    Observation,
    Policy,
    Problem,
    Source,
    Workload,
    Wrapper,
    read_needs,
)
from cqbjax.testing.instances import PROBLEM, draw_instances
from cqbjax.testing.policies import NATURAL, compile_runs

# Utilities so high that every answer is accepted, whoever gives it.
ALL_SATISFY = 30.0
SINGLE = PROBLEM._replace(assortment_size=1)


def check_fairness(policy: Policy, seed: int = 0) -> None:
    """Check that a policy sees what a contestant may see.

    It does not need the true utilities; it computes nothing outside of the program, where Python
    remembers; and where every answer satisfies, so that nothing can be learnt of the LLMs, it
    decides the same whatever users think of them.

    Args:
        policy: what to check; it plays K = 1.
        seed: of the random worlds.

    Raises:
        ContractError: in one sentence.
    """
    require(not read_needs(policy).true_utilities, "a contestant must not need the true utilities")
    one = jax.tree.map(operator.itemgetter(0), draw_instances(SINGLE, seed, 1))

    def play(policy: Policy) -> Any:
        carry = simulate.start(policy, SINGLE, one, SINGLE.horizon)
        return simulate.run_round(policy, SINGLE, one, carry, jnp.int32(1))

    require(
        "callback" not in str(jax.make_jaxpr(play)(as_arrays(policy))),
        "a contestant must compute in JAX alone: a callback can remember what it likes",
    )
    batch = draw_instances(SINGLE, seed, 4)
    # One world four times, but for what users think.
    same = jax.tree.map(lambda leaf: jnp.stack([leaf[0]] * 4), batch)
    hidden = jnp.argsort(batch.workload.utilities, axis=-1) + ALL_SATISFY
    worlds = same._replace(workload=same.workload._replace(utilities=hidden.astype(float)))
    shown = compile_runs(policy, SINGLE)(as_arrays(policy), jnp.full(4, NATURAL), worlds)
    for part in (shown.action.slot, shown.action.servers):
        decided = np.where(shown.decision.valid[(...,) + (None,) * (part.ndim - 2)], part, 0)
        require(
            bool((decided == decided[:1]).all()),
            "a contestant must not see the true utilities: its decisions change with them where "
            "no answer tells them",
        )


@pytree
class MaskedKeys(Wrapper):
    """A policy whose keys say nothing of the run: each is another key, as random.

    Attributes:
        policy: whose decisions they are.
        mask: folded into each key.
    """

    policy: Any
    mask: int = static(default=1)

    def init(self, problem: Problem, contexts: Array) -> Any:
        """Begin as the policy does."""
        return self.policy.init(problem, contexts)

    def select(self, key: Array, state: Any, observation: Observation) -> Action:
        """Decide as the policy does, with another key."""
        action: Action = self.policy.select(jax.random.fold_in(key, self.mask), state, observation)
        return action

    def update(
        self, state: Any, observation: Observation, action: Action, feedback: Feedback
    ) -> Any:
        """Learn as the policy does."""
        return self.policy.update(state, observation, action, feedback)


@pytree
class PermutedServers:
    """A source whose LLMs have other numbers: the same queries, users and arrivals.

    Attributes:
        source: whose instances they are.
        order: number here -> number there.
    """

    source: Any
    order: tuple[int, ...] = static(default=())

    @property
    def draw_arrivals(self) -> Any:
        """The source's own arrivals; there is no such attribute where it has none."""
        return self.source.draw_arrivals

    @property
    def process(self) -> Any:
        """The source's own process of arrivals, likewise."""
        return self.source.process

    def problem(self, K: int, horizon: int) -> Problem:
        """Return the source's shapes."""
        problem: Problem = self.source.problem(K, horizon)
        return problem

    def check(self, seeds: np.ndarray, arrival_rate: float, K: int) -> None:
        """Refuse what the source refuses."""
        self.source.check(seeds, arrival_rate, K)

    def uniform_service(self, seeds: np.ndarray, arrival_rate: float, K: int) -> float:
        """Return the source's own."""
        served: float = self.source.uniform_service(seeds, arrival_rate, K)
        return served

    def draw_workload(self, key: Array, arrival_rate: Array, problem: Problem) -> Workload:
        """Draw the source's instance, and number its LLMs anew."""
        world: Workload = self.source.draw_workload(key, arrival_rate, problem)
        order = jnp.asarray(self.order)
        contexts = world.contexts if problem.parameters == "disjoint" else world.contexts[:, order]
        drift, billed = world.drift, world.answer_costs
        if drift is not None:
            drift = drift._replace(other=drift.other[:, order])
        if billed is not None:
            billed = billed._replace(
                dollars=billed.dollars[:, order], scores=billed.scores[:, order]
            )
        return world._replace(
            contexts=contexts, utilities=world.utilities[:, order], drift=drift, answer_costs=billed
        )


def permute_servers(source: Source, order: tuple[int, ...]) -> Source:
    """Return a source whose LLMs have other numbers; users and service stay as they are."""
    if isinstance(source, Scenario):
        return dataclasses.replace(
            source, source=PermutedServers(source=source.source, order=order)
        )
    return PermutedServers(source=source, order=order)


def run_mask(seed: int) -> int:
    """Return a mask that no draw of a run folds in."""
    return 2**30 + seed + len(rng.Stream)
