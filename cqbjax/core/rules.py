"""What may be otherwise than in the paper's world: what users do, and what the service can do.

In the paper's world a user who is not satisfied waits on, and one query is served a round, by LLMs
that are always there. `Users` and `Service` are what a kind of user or of service is made from (a
file each in `cqbjax.worlds`); a `Setting` is a source together with some of them. All that a kind
draws it draws before the first round, by the run's key: every policy meets the same.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax.core import rng
from cqbjax.core.pytree import pytree
from cqbjax.core.types import Problem, Source, World


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
    attempt, the servers that are there by all, and feedback that none of them loses.

    Attributes:
        places: c, queries served at a time.
        lasting: whether an attempt may take more than its round.
        of_paper: whether nothing is otherwise.
    """

    lasting: bool = False
    of_paper: bool = False

    @property
    def places(self) -> int:
        """Return c."""
        return 1

    def check(self, problem: Problem) -> None:
        """Raise ValueError, in one sentence, for a setting out of range."""

    def draw(self, key: Array, problem: Problem) -> Any:
        """Draw what happens when: a tree whose leaves are [T, ...]; `key` is this kind's own."""
        return ()

    def available(self, drawn: Any) -> Array | None:
        """Return which servers answer this round, [N] bool; None: all. `drawn`: leaves [...]."""
        return None

    def takes(self, drawn: Any, place: Array, servers: Array) -> Array | None:
        """Return how many rounds the attempt takes, [] int32; None: one.

        `place` is the number of its place, `servers` [K] who serves.
        """
        return None

    def hears(self, drawn: Any, place: Array) -> Array | None:
        """Return whether the feedback of an attempt that ends reaches the policy; None: always."""
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
        return _all(said)

    def takes(self, round_: Array, place: Array, servers: Array) -> Array:
        """Return how many rounds an attempt takes that begins now: [] int32."""
        longest = jnp.int32(1)
        for one, mine in self._service:
            own = one.takes(at(mine, round_), place, servers)
            longest = longest if own is None else jnp.maximum(longest, own)
        return longest

    def hears(self, round_: Array, place: Array) -> Array | None:
        """Return whether feedback reaches the policy: [] bool, or None."""
        return _all([one.hears(at(mine, round_), place) for one, mine in self._service])

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


def _all(said: list[Array | None]) -> Array | None:
    """Return what holds by all who say something; None where nobody does."""
    whole = None
    for one in said:
        if one is not None:
            whole = one if whole is None else whole & one
    return whole


@pytree
class Setting:
    """A source with what users and the service do beside the paper's.

    Attributes:
        source: where queries come from.
        users: kinds of `Users`.
        service: kinds of `Service`.
    """

    source: Any
    users: Any = ()
    service: Any = ()

    def problem(self, assortment_size: int, horizon: int) -> Problem:
        """Return the source's shapes, with the places that there are."""
        places = max((one.places for one in self.service), default=1)
        return self._source.problem(assortment_size, horizon)._replace(places=places)

    def check(self, seeds: Any, arrival_rate: float, assortment_size: int) -> None:
        """Refuse what the source or one of the kinds refuses.

        Raises:
            ValueError: in one sentence, naming the setting.
        """
        problem, source = self.problem(assortment_size, 1), self.source
        for one in (*self.users, *self.service):
            one.check(problem)
        if problem.places > 1 and hasattr(source, "process"):
            source.process.check(arrival_rate)
            source = source.source
        source.check(seeds, arrival_rate / problem.places, assortment_size)
        if problem.places > 1 and problem.age_column is not None:
            raise ValueError("count must be 1 where a log is replayed")

    def uniform_service(self, seeds: Any, arrival_rate: float, assortment_size: int) -> float:
        """Return the source's own, as many times as there are places."""
        places = self.problem(assortment_size, 1).places
        return places * self._source.uniform_service(seeds, arrival_rate / places, assortment_size)

    def world(self, key: Array, arrival_rate: Array, problem: Problem) -> World:
        """Draw the source's instance."""
        return self._source.world(key, arrival_rate, problem)

    def rules(self, key: Array, problem: Problem) -> Rules | None:
        """Draw what its kinds draw; None where it has none: the paper's round."""
        if not self.users and not self.service:
            return None
        users, service = tuple(self.users), tuple(self.service)
        keys = _keys(key, rng.Stream.USERS, len(users))
        of_users = tuple(one.draw(own, problem) for one, own in zip(users, keys, strict=True))
        keys = _keys(key, rng.Stream.SERVICE, len(service))
        of_service = tuple(one.draw(own, problem) for one, own in zip(service, keys, strict=True))
        keys = _keys(key, rng.Stream.PATIENCE, len(users))
        borne = [one.bears(own, problem) for one, own in zip(users, keys, strict=True)]
        limited = [rounds for rounds in borne if rounds is not None]
        least = functools.reduce(jnp.minimum, limited) if limited else None
        return Rules(users, service, of_users, of_service, least)

    @property
    def _source(self) -> Source:
        return self.source


def _keys(key: Array, stream: rng.Stream, number: int) -> list[Array]:
    """Return a key a kind."""
    at_ = rng.stream_key(rng.round_key(key, 0), stream)
    return [jax.random.fold_in(at_, place) for place in range(number)]


def with_rules(source: Source, users: Sequence[Users], service: Sequence[Service]) -> Source:
    """Return a source with kinds of users and of service; alone where all are the paper's.

    Raises:
        ValueError: one is no kind.
    """
    for key, base, kinds in (("users", Users, users), ("service", Service, service)):
        for one in kinds:
            if not isinstance(one, base) or any(leaf is one for leaf in jax.tree.leaves(one)):
                raise ValueError(
                    f"{key} has {type(one).__name__}, and takes frozen pytrees made from "
                    f"core.rules.{base.__name__}"
                )
    own = [tuple(one for one in kinds if not one.of_paper) for kinds in (users, service)]
    return Setting(source=source, users=own[0], service=own[1]) if any(own) else source
