"""What may be otherwise than in the paper's world: what users do, and what the service can do.

In the paper's world a user who is not satisfied waits on, and one query is served a round, by LLMs
that are always there. `Users` and `Service` are what a kind of user or of service is made from (a
file each in `cqbjax.dynamics`); `core.setting` puts a source together with some of them. All that a
kind draws it draws before the first round, by the run's key: every policy meets the same.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax.core.given import TableNames
from cqbjax.core.types import Problem


class Reaction(NamedTuple):
    """What a user does whose attempt failed.

    Attributes:
        leaves: [] bool whether the user gives up.
        pretends: [] bool whether giving up looks like satisfaction to the service.
        away: [] int32 rounds until the query waits again; 1 is the paper's: the next round.
    """

    leaves: Array
    pretends: Array
    away: Array


# What the paper's user does.
_NO: Any = np.bool_(False)
_NEXT: Any = np.int32(1)
STAYS = Reaction(_NO, _NO, _NEXT)


class Users:
    """What users do who are not satisfied: a frozen pytree dataclass, each method for one run.

    Made from this, a class says what is otherwise; several are combined: who gives up by one of
    them does, and who is away by several is away for the longest.

    Attributes:
        of_paper: whether nothing is otherwise.
    """

    of_paper: bool = False

    def check(self, problem: Problem) -> None:
        """Raise ValueError, in one sentence, for a setting out of range."""

    def draw(self, key: Array, problem: Problem) -> Any:
        """Draw what reactions are made of: a tree whose leaves are [T, c, ...].

        `key` is this kind's own.
        """
        return ()

    def bears(self, key: Array, problem: Problem) -> Array | None:
        """Draw how many rounds a query bears to wait unserved: [T, A] int32 of who comes when.

        None: any number.
        """
        return None

    def reacts(self, drawn: Any, attempts: Array) -> Reaction:
        """Say what a user does after so many attempts ([] int32, from 1), the last one failed.

        `drawn` is of the round and the place: leaves [...].
        """
        return STAYS


class Service:
    """What the service can do in a round: a frozen pytree dataclass, each method for one run.

    Made from this, a class says what is otherwise. Of several the most places count, the longest
    attempt, the longest delay, the servers that are there by all, feedback that none of them loses,
    and prices by all.

    Attributes:
        places: c, queries served at a time.
        delay: rounds after the end of an attempt until its feedback is heard.
        lasting: whether an attempt may take more than its round.
        neutral: whether it changes nothing but what is learnt and what is paid: queries fare as
            without it under a policy that does not learn.
        of_paper: whether nothing is otherwise.
    """

    delay: int = 0
    lasting: bool = False
    neutral: bool = False
    of_paper: bool = False

    @property
    def places(self) -> int:
        """Return c."""
        return 1

    def joined(self, names: TableNames | None) -> Self:
        """Return the kind for the names of a source's table; itself where it reads none."""
        return self

    def check(self, problem: Problem) -> None:
        """Raise ValueError, in one sentence, for a setting out of range."""

    def draw(self, key: Array, problem: Problem) -> Any:
        """Draw what happens when: a tree whose leaves are [T, ...]; `key` is this kind's own."""
        return ()

    def available(self, drawn: Any) -> Array | None:
        """Return which servers answer this round, [N] bool; None: all. `drawn`: leaves [...]."""
        return None

    def takes(self, drawn: Any, place: Array, prompt: Array, servers: Array) -> Array | None:
        """Return how many rounds the attempt takes, [] int32; None: one.

        `place` is the number of its place, `prompt` the dataset's own number of what is asked,
        `servers` [K] who serves.
        """
        return None

    def hears(self, drawn: Any, place: Array) -> Array | None:
        """Return whether the feedback of an attempt that ends reaches the policy; None: always."""
        return None

    def prices(self, drawn: Any) -> Array | None:
        """Return by what each server's price is multiplied this round, [N] float; None: by one."""
        return None


class Rules(NamedTuple):
    """The kinds of one run, with what they drew.

    Attributes:
        users: of users.
        service: of service.
        of_users: what each drew, leaves [T, c, ...].
        of_service: what each drew, leaves [T, ...].
        patience: [T, A] int32 rounds that who comes bears to wait, or None.
    """

    users: tuple[Users, ...]
    service: tuple[Service, ...]
    of_users: tuple[Any, ...]
    of_service: tuple[Any, ...]
    patience: Array | None

    @property
    def lasting(self) -> bool:
        """Whether an attempt may take more than its round."""
        return any(one.lasting for one in self.service)

    def available(self, round_: Array) -> Array | None:
        """Return which servers answer in a round: [N] bool, or None."""
        said = [one.available(at(mine, round_)) for one, mine in self._service]
        return _whole(said, jnp.logical_and)

    @property
    def delay(self) -> int:
        """Rounds after the end of an attempt until its feedback is heard."""
        return max((one.delay for one in self.service), default=0)

    def takes(self, round_: Array, place: Array, prompt: Array, servers: Array) -> Array:
        """Return how many rounds an attempt takes that begins now: [] int32."""
        longest = jnp.int32(1)
        for one, mine in self._service:
            own = one.takes(at(mine, round_), place, prompt, servers)
            longest = longest if own is None else jnp.maximum(longest, own)
        return longest

    def hears(self, round_: Array, place: Array) -> Array | None:
        """Return whether feedback reaches the policy: [] bool, or None."""
        said = [one.hears(at(mine, round_), place) for one, mine in self._service]
        return _whole(said, jnp.logical_and)

    def prices(self, round_: Array) -> Array | None:
        """Return by what prices are multiplied in a round: [N] float, or None."""
        said = [one.prices(at(mine, round_)) for one, mine in self._service]
        return _whole(said, jnp.multiply)

    def reacts(self, round_: Array, place: Array, attempts: Array) -> Reaction:
        """Return what the user does whose attempt failed."""
        leaves, pretends, away = STAYS
        for one, drawn in zip(self.users, self.of_users, strict=True):
            mine = jax.tree.map(lambda leaf: leaf[round_ - 1, place], drawn)
            said = one.reacts(mine, attempts)
            leaves = leaves | said.leaves
            pretends = pretends | (said.leaves & said.pretends)
            away = jnp.maximum(away, said.away)
        return Reaction(leaves, pretends, away)

    @property
    def _service(self) -> list[tuple[Service, Any]]:
        return list(zip(self.service, self.of_service, strict=True))


def at(drawn: Any, round_: Array) -> Any:
    """Return what was drawn for a round."""
    return jax.tree.map(lambda leaf: leaf[round_ - 1], drawn)


def _whole(said: list[Array | None], together: Callable[[Array, Array], Array]) -> Array | None:
    """Put together what is said by those who say something; None where nobody does."""
    told = [one for one in said if one is not None]
    return functools.reduce(together, told) if told else None
