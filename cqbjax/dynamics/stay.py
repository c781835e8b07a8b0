"""The paper's users: who is not satisfied waits on, for as long as it takes."""

from cqbjax.core.pytree import pytree
from cqbjax.core.rules import Users


@pytree
class Stay(Users):
    """Wait again in the next round."""

    of_paper = True
