"""A small policy to copy: epsilon-greedy routing of the oldest query.

To add your own, in a folder of your own:

1. Copy this file to `my_policy.py` there and change the class.
2. Write `conf/policy/mine.yaml` there; its one key is the label in results and overrides:

       mine:
         _target_: my_policy.MyPolicy
         epsilon: 0.1

3. Run it with `cqbjax run policy=[optimal,acqb,mine]` (in a checkout `python scripts/run.py ...`),
   and check it: `cqbjax.testing.check_policy(MyPolicy())`.

Nothing else needs an edit: the loop, the masks, batching and recording know only the protocol
`cqbjax.core.types.Policy`.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from cqbjax import Action, Feedback, Observation, Problem, mnl, pytree, queueing, rng
from cqbjax.policies import draw_assortment, mask_unavailable


class State(NamedTuple):
    """State from round to round: arrays whose shapes and types never change.

    Attributes:
        offered: [N] float, rounds in which each server was offered.
        accepted: [N] float, rounds in which its answer was chosen.
    """

    offered: Array
    accepted: Array


# `pytree` makes a frozen dataclass whose fields are leaves: traced, batched, and changed without
# recompiling. Declare with `static(default=...)` what fixes a shape or chooses code.
@pytree
class EpsilonGreedy:
    """Offer random servers with probability epsilon, else those with the best acceptance rates.

    Attributes:
        epsilon: probability of exploring, in [0, 1].
    """

    epsilon: Array | float = 0.1

    # A policy that needs more than queue and features declares it here: `needs = Needs(...)`.

    def init(self, problem: Problem, contexts: Array) -> State:
        """Return the state before round 1; raise ValueError for a problem it cannot handle."""
        zeros = jnp.zeros(problem.num_servers)
        return State(zeros, zeros)

    def select(self, key: Array, state: State, observation: Observation) -> Action:
        """Serve the oldest query with a random assortment or the best one.

        Write for one run, without a batch axis. An empty queue needs no special case: the simulator
        discards the decision.
        """
        problem = observation.problem
        # Every draw has an address (seed, round, stream); use each stream once per round.
        explored = rng.uniform(key, rng.Stream.EXPLORE) < self.epsilon
        slot = queueing.pick("oldest", observation.queue, rng.uniform(key, rng.Stream.QUERY))
        random = draw_assortment(key, observation)
        # A server that was never offered counts as accepted half of the time.
        rate = (state.accepted + 1.0) / (state.offered + 2.0)
        # LLMs that are down this round come last.
        rate = mask_unavailable(rate, observation)
        best = mnl.best_servers(rate, problem.assortment_size)
        # No Python `if` on a traced value: compute both and choose.
        return Action(slot, jnp.where(explored, random, best), explored)

    def update(
        self, state: State, observation: Observation, action: Action, feedback: Feedback
    ) -> State:
        """Count the offered and the chosen servers."""
        servers, number = action.servers, observation.problem.num_servers
        # In a round without a query or an answer `valid` is False, and the state must not change.
        return State(
            state.offered + (mnl.mark_servers(action.answering_servers, number) & feedback.valid),
            state.accepted + (mnl.mark_choice(servers, feedback.choice, number) & feedback.valid),
        )
