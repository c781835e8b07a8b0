"""A source together with kinds of users and of service that are not the paper's."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from cqbjax.core import contract, rng
from cqbjax.core.pytree import pytree
from cqbjax.core.rules import Rules, Service, Users
from cqbjax.core.types import Problem, Source
from cqbjax.core.world import World

# By which of its methods a kind says what is otherwise.
SAYS: dict[Any, tuple[str, ...]] = {
    Users: ("reacts", "bears"),
    Service: ("places", "available", "takes", "hears", "delay", "prices"),
}
# What fixes shapes of a service, and the least that it may be.
WHOLE = {"places": 1, "delay": 0}


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

    def problem(self, K: int, horizon: int) -> Problem:
        """Return the source's shapes, with the places that there are."""
        places = max((one.places for one in self.service), default=1)
        outages = any(type(one).available is not Service.available for one in self.service)
        problem = self._source.problem(K, horizon)
        return problem._replace(places=places, outages=outages)

    def check(self, seeds: Any, arrival_rate: float, K: int) -> None:
        """Refuse what the source or one of the kinds refuses.

        Raises:
            ValueError: in one sentence, naming the setting.
        """
        problem, source = self.problem(K, 1), self.source
        for one in (*self.users, *self.service):
            one.check(problem)
        if problem.places > 1 and hasattr(source, "process"):
            source.process.check(arrival_rate)
            source = source.source
        source.check(seeds, arrival_rate / problem.places, K)
        if problem.places > 1 and problem.age_column is not None:
            raise ValueError("count must be 1 where a log is replayed")

    def uniform_service(self, seeds: Any, arrival_rate: float, K: int) -> float:
        """Return the source's own, as many times as there are places."""
        places = self.problem(K, 1).places
        return places * self._source.uniform_service(seeds, arrival_rate / places, K)

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


def alone(source: Source) -> Source:
    """Return a source without its kinds."""
    inside: Source = source.source if isinstance(source, Setting) else source
    return inside


def kinds_of(source: Source) -> tuple[Users | Service, ...]:
    """Return the kinds of users, and then of service, that a source has around it."""
    return (*source.users, *source.service) if isinstance(source, Setting) else ()


def with_rules(source: Source, users: Sequence[Users], service: Sequence[Service]) -> Source:
    """Return a source with kinds of users and of service; alone where all are the paper's.

    Raises:
        ContractError: one is no kind, or says nothing.
    """
    for key, base, kinds in (("users", Users, users), ("service", Service, service)):
        with contract.naming(key):
            contract.require(isinstance(kinds, list | tuple), "must be a list of kinds")
            for one in kinds:
                check_kind(one, base)
    names = getattr(contract.layers(source)[-1], "names", None)
    service = [one.joined(names) for one in service]
    own = [tuple(one for one in kinds if not one.of_paper) for kinds in (users, service)]
    return Setting(source=source, users=own[0], service=own[1]) if any(own) else source


def check_kind(kind: Any, base: type) -> None:
    """Check what can be told of a kind by looking.

    Args:
        kind: of users or of service.
        base: `Users` or `Service`.

    Raises:
        ContractError: naming the class.
    """
    contract.check_registered(kind)
    name = type(kind).__name__
    contract.require(isinstance(kind, base), f"{name} must be made from core.rules.{base.__name__}")
    own = any(getattr(type(kind), one, None) is not getattr(base, one) for one in SAYS[base])
    contract.require(
        kind.of_paper or own,
        f"{name} lacks a method that changes something, one of {', '.join(SAYS[base])}",
    )
    # This package's refuse their own settings, by their own names.
    if isinstance(kind, Service) and contract.is_foreign(kind):
        for key, least in WHOLE.items():
            value = getattr(kind, key)
            contract.require(
                type(value) is int and value >= least,
                f"{name}.{key} must be a whole number, at least {least}, and it is {value!r}",
            )


def is_ours(source: Source) -> bool:
    """Tell whether the policy `optimal` is a rule of ours, and neither the paper's nor the best.

    It is where tastes change, and with any kind that is not neutral.
    """
    changes = any(getattr(one, "changes", False) for one in contract.layers(source))
    return changes or not all(getattr(one, "neutral", False) for one in kinds_of(source))
