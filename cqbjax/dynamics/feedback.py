"""Feedback that reaches the service some rounds later, or never."""

import jax
from jax import Array

from cqbjax.core.inputs import check_interval
from cqbjax.core.pytree import pytree, static
from cqbjax.core.scenario import ServiceModel
from cqbjax.core.types import Problem


@pytree
class DelayedFeedback(ServiceModel):
    """A policy learns from an attempt some rounds after its end.

    The query itself departs, or waits again, at once. When the feedback arrives, `update`
    receives an observation in which the query's features are in the query's former slot.

    Attributes:
        delay: rounds by which feedback is late; the feedback of round t is known from round t +
            delay + 1 on.
    """

    delay: int = static(default=10)

    neutral = True

    def check(self, problem: Problem) -> None:
        """Validate the delay.

        Raises:
            ValueError: naming the key and what is allowed.
        """
        check_interval(self, "[0, inf)", "delay", whole=True)
        if problem.age_column is not None:
            raise ValueError("delay must be 0 where a log is replayed")


@pytree
class LostFeedback(ServiceModel):
    """The feedback of some attempts never reaches the policy.

    Attributes:
        lost: the probability that the feedback of an attempt is lost.
    """

    lost: Array | float = 0.1

    neutral = True

    def check(self, problem: Problem) -> None:
        """Validate the probability.

        Raises:
            ValueError: naming the key and what is allowed.
        """
        check_interval(self, "[0, 1]", "lost")

    def draw(self, key: Array, problem: Problem) -> Array:
        """Draw whether the feedback of each attempt arrives: [T, c] bool."""
        return jax.random.uniform(key, (problem.horizon, problem.channels)) >= self.lost

    def feedback_arrives(self, drawn: Array, channel: Array) -> Array:
        """Return whether the feedback arrives."""
        return drawn[channel]
