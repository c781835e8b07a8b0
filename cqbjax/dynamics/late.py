"""Feedback that reaches the service some rounds late."""

from cqbjax.core.pytree import pytree, static
from cqbjax.core.rules import Service
from cqbjax.core.types import Problem


@pytree
class Late(Service):
    """What became of an attempt is learnt from some rounds after its end.

    The query itself leaves, or waits again, at once. What it was is shown again when it is learnt
    from, in the slot that it had.

    Attributes:
        delay: rounds, 0 for none: what an attempt of round t teaches is known from round
            t + delay + 1 on.
    """

    delay: int = static(default=10)

    neutral = True

    def check(self, problem: Problem) -> None:
        """Refuse what is no number of rounds.

        Raises:
            ValueError: naming the key and what is allowed.
        """
        if type(self.delay) is not int or self.delay < 0:
            raise ValueError(f"delay={self.delay} must be a whole number of rounds, 0 or more")
        if problem.age_column is not None:
            raise ValueError("delay must be 0 where a log is replayed")
