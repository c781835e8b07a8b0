"""How many queries are served a round."""

from cqbjax.core.pytree import pytree, static
from cqbjax.core.rules import Service
from cqbjax.core.types import Problem


@pytree
class One(Service):
    """The paper's service: one query a round, to its end, by servers that are always there."""

    of_paper = True


@pytree
class Count(Service):
    """Several queries a round: a policy selects as often, each time without those it has taken.

    It learns from all of them when the round ends, and not between its selections.

    Attributes:
        count: c, queries served at a time.
    """

    count: int = static(default=1)

    @property
    def places(self) -> int:
        """Return c."""
        return self.count

    def check(self, problem: Problem) -> None:
        """Refuse what is no number of queries.

        Raises:
            ValueError: naming the key and what is allowed.
        """
        del problem
        if type(self.count) is not int or self.count < 1:
            raise ValueError(f"count={self.count} must be a whole number of queries, at least 1")
