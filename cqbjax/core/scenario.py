"""A scenario: a source with user and service dynamics that extend the paper's model.

In the paper, an unsatisfied query waits for the next round, one query is served per round, and all
LLMs are always available. `UserModel` and `ServiceModel` are the base classes of what differs (see
`cqbjax.dynamics`). A model draws all its random numbers before the first round, from the run's key,
so that every policy meets the same ones.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax.core import contract, rng
from cqbjax.core.inputs import TableNames
from cqbjax.core.pytree import pytree
from cqbjax.core.types import Problem, Source, Workload


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
PAPER_REACTION = Reaction(_NO, _NO, _NEXT)


class UserModel:
    """What users do who are not satisfied: a frozen pytree dataclass, each method for one run.

    Made from this, a class says what is otherwise; several are combined: who gives up by one of
    them does, and who is away by several is away for the longest.

    Attributes:
        matches_paper: whether nothing is otherwise.
    """

    matches_paper: bool = False

    def check(self, problem: Problem) -> None:
        """Raise ValueError, in one sentence, for a setting out of range."""

    def draw(self, key: Array, problem: Problem) -> Any:
        """Draw what reactions are made of: a tree whose leaves are [T, c, ...].

        `key` is this kind's own.
        """
        return ()

    def draw_patience(self, key: Array, problem: Problem) -> Array | None:
        """Draw how many rounds a query bears to wait unserved: [T, A] int32 of who comes when.

        None: any number.
        """
        return None

    def react(self, drawn: Any, attempts: Array) -> Reaction:
        """Say what a user does after so many attempts ([] int32, from 1), the last one failed.

        `drawn` is of the round and the place: leaves [...].
        """
        return PAPER_REACTION


class ServiceModel:
    """What the service can do in a round: a frozen pytree dataclass, each method for one run.

    Made from this, a class says what is otherwise. Of several the most places count, the longest
    attempt, the longest delay, the servers that are there by all, feedback that none of them loses,
    and prices by all.

    Attributes:
        channels: c, queries served at a time.
        delay: rounds after the end of an attempt until its feedback is heard.
        lasting: whether an attempt may take more than its round.
        neutral: whether it changes nothing but what is learnt and what is paid: queries fare as
            without it under a policy that does not learn.
        matches_paper: whether nothing is otherwise.
    """

    delay: int = 0
    lasting: bool = False
    neutral: bool = False
    matches_paper: bool = False

    @property
    def channels(self) -> int:
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

    def service_time(self, drawn: Any, place: Array, prompt: Array, servers: Array) -> Array | None:
        """Return how many rounds the attempt takes, [] int32; None: one.

        `place` is the number of its place, `prompt` the dataset's own number of what is asked,
        `servers` [K] who serves.
        """
        return None

    def feedback_arrives(self, drawn: Any, place: Array) -> Array | None:
        """Return whether the feedback of an attempt that ends reaches the policy; None: always."""
        return None

    def prices(self, drawn: Any) -> Array | None:
        """Return by what each server's price is multiplied this round, [N] float; None: by one."""
        return None


class Dynamics(NamedTuple):
    """The kinds of one run, with what they drew.

    Attributes:
        users: of users.
        service: of service.
        user_draws: what each drew, leaves [T, c, ...].
        service_draws: what each drew, leaves [T, ...].
        patience: [T, A] int32 rounds that who comes bears to wait, or None.
    """

    users: tuple[UserModel, ...]
    service: tuple[ServiceModel, ...]
    user_draws: tuple[Any, ...]
    service_draws: tuple[Any, ...]
    patience: Array | None

    @property
    def lasting(self) -> bool:
        """Whether an attempt may take more than its round."""
        return any(one.lasting for one in self.service)

    def available(self, round_: Array) -> Array | None:
        """Return which servers answer in a round: [N] bool, or None."""
        said = [one.available(_at_round(mine, round_)) for one, mine in self._service]
        return _combine(said, jnp.logical_and)

    @property
    def delay(self) -> int:
        """Rounds after the end of an attempt until its feedback is heard."""
        return max((one.delay for one in self.service), default=0)

    def service_time(self, round_: Array, place: Array, prompt: Array, servers: Array) -> Array:
        """Return how many rounds an attempt takes that begins now: [] int32."""
        longest = jnp.int32(1)
        for one, mine in self._service:
            own = one.service_time(_at_round(mine, round_), place, prompt, servers)
            longest = longest if own is None else jnp.maximum(longest, own)
        return longest

    def feedback_arrives(self, round_: Array, place: Array) -> Array | None:
        """Return whether feedback reaches the policy: [] bool, or None."""
        said = [one.feedback_arrives(_at_round(mine, round_), place) for one, mine in self._service]
        return _combine(said, jnp.logical_and)

    def prices(self, round_: Array) -> Array | None:
        """Return by what prices are multiplied in a round: [N] float, or None."""
        said = [one.prices(_at_round(mine, round_)) for one, mine in self._service]
        return _combine(said, jnp.multiply)

    def react(self, round_: Array, place: Array, attempts: Array) -> Reaction:
        """Return what the user does whose attempt failed."""
        leaves, pretends, away = PAPER_REACTION
        for one, drawn in zip(self.users, self.user_draws, strict=True):
            mine = jax.tree.map(lambda leaf: leaf[round_ - 1, place], drawn)
            said = one.react(mine, attempts)
            leaves = leaves | said.leaves
            pretends = pretends | (said.leaves & said.pretends)
            away = jnp.maximum(away, said.away)
        return Reaction(leaves, pretends, away)

    @property
    def _service(self) -> list[tuple[ServiceModel, Any]]:
        return list(zip(self.service, self.service_draws, strict=True))


def _at_round(drawn: Any, round_: Array) -> Any:
    """Return what was drawn for a round."""
    return jax.tree.map(lambda leaf: leaf[round_ - 1], drawn)


def _combine(said: list[Array | None], together: Callable[[Array, Array], Array]) -> Array | None:
    """Put together what is said by those who say something; None where nobody does."""
    told = [one for one in said if one is not None]
    return functools.reduce(together, told) if told else None


# By which of its methods a kind says what is otherwise.
METHODS: dict[Any, tuple[str, ...]] = {
    UserModel: ("react", "draw_patience"),
    ServiceModel: ("channels", "available", "service_time", "feedback_arrives", "delay", "prices"),
}
# What fixes shapes of a service, and the least that it may be.
MINIMUM = {"channels": 1, "delay": 0}


@pytree
class Scenario:
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
        channels = max((one.channels for one in self.service), default=1)
        outages = any(type(one).available is not ServiceModel.available for one in self.service)
        problem = self._source.problem(K, horizon)
        return problem._replace(channels=channels, outages=outages)

    def check(self, seeds: Any, arrival_rate: float, K: int) -> None:
        """Refuse what the source or one of the kinds refuses.

        Raises:
            ValueError: in one sentence, naming the setting.
        """
        problem, source = self.problem(K, 1), self.source
        for one in (*self.users, *self.service):
            one.check(problem)
        if problem.channels > 1 and hasattr(source, "process"):
            source.process.check(arrival_rate)
            source = source.source
        source.check(seeds, arrival_rate / problem.channels, K)
        if problem.channels > 1 and problem.age_column is not None:
            raise ValueError("count must be 1 where a log is replayed")

    def uniform_service(self, seeds: Any, arrival_rate: float, K: int) -> float:
        """Return the source's own, as many times as there are places."""
        channels = self.problem(K, 1).channels
        return channels * self._source.uniform_service(seeds, arrival_rate / channels, K)

    def draw_workload(self, key: Array, arrival_rate: Array, problem: Problem) -> Workload:
        """Draw the source's instance."""
        return self._source.draw_workload(key, arrival_rate, problem)

    def draw_dynamics(self, key: Array, problem: Problem) -> Dynamics | None:
        """Draw what its kinds draw; None where it has none: the paper's round."""
        if not self.users and not self.service:
            return None
        users, service = tuple(self.users), tuple(self.service)
        keys = _keys(key, rng.Stream.USERS, len(users))
        of_users = tuple(one.draw(own, problem) for one, own in zip(users, keys, strict=True))
        keys = _keys(key, rng.Stream.SERVICE, len(service))
        of_service = tuple(one.draw(own, problem) for one, own in zip(service, keys, strict=True))
        keys = _keys(key, rng.Stream.PATIENCE, len(users))
        borne = [one.draw_patience(own, problem) for one, own in zip(users, keys, strict=True)]
        limited = [rounds for rounds in borne if rounds is not None]
        least = functools.reduce(jnp.minimum, limited) if limited else None
        return Dynamics(users, service, of_users, of_service, least)

    @property
    def _source(self) -> Source:
        return self.source


def _keys(key: Array, stream: rng.Stream, number: int) -> list[Array]:
    """Return a key a kind."""
    at_ = rng.stream_key(rng.round_key(key, 0), stream)
    return [jax.random.fold_in(at_, place) for place in range(number)]


def base_source(source: Source) -> Source:
    """Return a source without its kinds."""
    inside: Source = source.source if isinstance(source, Scenario) else source
    return inside


def models_of(source: Source) -> tuple[UserModel | ServiceModel, ...]:
    """Return the kinds of users, and then of service, that a source has around it."""
    return (*source.users, *source.service) if isinstance(source, Scenario) else ()


def with_dynamics(
    source: Source, users: Sequence[UserModel], service: Sequence[ServiceModel]
) -> Source:
    """Return a source with kinds of users and of service; alone where all are the paper's.

    Raises:
        ContractError: one is no kind, or says nothing.
    """
    for key, base, kinds in (("users", UserModel, users), ("service", ServiceModel, service)):
        with contract.prefix_errors(key):
            contract.require(isinstance(kinds, list | tuple), "must be a list of kinds")
            for one in kinds:
                check_model(one, base)
    names = getattr(contract.source_layers(source)[-1], "names", None)
    service = [one.joined(names) for one in service]
    own = [tuple(one for one in kinds if not one.matches_paper) for kinds in (users, service)]
    return Scenario(source=source, users=own[0], service=own[1]) if any(own) else source


def check_model(kind: Any, base: type) -> None:
    """Check what can be told of a kind by looking.

    Args:
        kind: of users or of service.
        base: `Users` or `Service`.

    Raises:
        ContractError: naming the class.
    """
    contract.check_registered(kind)
    name = type(kind).__name__
    contract.require(
        isinstance(kind, base), f"{name} must be made from core.scenario.{base.__name__}"
    )
    own = any(getattr(type(kind), one, None) is not getattr(base, one) for one in METHODS[base])
    contract.require(
        kind.matches_paper or own,
        f"{name} lacks a method that changes something, one of {', '.join(METHODS[base])}",
    )
    # This package's refuse their own settings, by their own names.
    if isinstance(kind, ServiceModel) and contract.is_third_party(kind):
        for key, least in MINIMUM.items():
            value = getattr(kind, key)
            contract.require(
                type(value) is int and value >= least,
                f"{name}.{key} must be a whole number, at least {least}, and it is {value!r}",
            )


def oracle_is_heuristic(source: Source) -> bool:
    """Tell whether the policy `optimal` is a rule of ours, and neither the paper's nor the best.

    It is where tastes change, and with any kind that is not neutral.
    """
    changes = any(getattr(one, "changes", False) for one in contract.source_layers(source))
    return changes or not all(getattr(one, "neutral", False) for one in models_of(source))
