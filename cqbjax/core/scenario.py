"""A scenario: a source with user and service dynamics that extend the paper's model.

In the paper, an unsatisfied query waits for the next round, one query is served per round, and all
LLMs are always available. Subclasses of `UserModel` and `ServiceModel` define other dynamics (see
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
    """What a user does after a failed attempt.

    Attributes:
        leaves: [] bool whether the user gives up.
        pretends: [] bool whether giving up looks like satisfaction to the service.
        away: [] int32 rounds until the query waits again; 1 (the next round) in the paper.
    """

    leaves: Array
    pretends: Array
    away: Array


# In the paper, a user never gives up, and the query waits again in the next round.
_NO: Any = np.bool_(False)
_NEXT: Any = np.int32(1)
PAPER_REACTION = Reaction(_NO, _NO, _NEXT)


class UserModel:
    """Base class of user dynamics: what unsatisfied users do.

    A subclass is a frozen pytree dataclass that overrides only what differs from the paper. Its
    methods handle one run, without a batch axis. If a scenario has several user models, a query
    abandons if any model says so, its patience is the minimum, and its return delay the maximum.

    Attributes:
        matches_paper: whether the model, with its settings, is the paper's.
    """

    matches_paper: bool = False

    def check(self, problem: Problem) -> None:
        """Raise ValueError, in one sentence, for a setting out of range."""

    def draw(self, key: Array, problem: Problem) -> Any:
        """Draw the random numbers that `react` uses: a pytree with leaves [T, c, ...].

        No other model uses `key`.
        """
        return ()

    def draw_patience(self, key: Array, problem: Problem) -> Array | None:
        """Draw each arriving query's patience: [T, A] int32, by round of arrival.

        Patience is the number of rounds that a query waits unserved before it leaves. None:
        unlimited.
        """
        return None

    def react(self, drawn: Any, attempts: Array) -> Reaction:
        """Return what a user does after a failed attempt, the `attempts`-th ([] int32, from 1).

        `drawn` holds the draws for this round and service channel: leaves [...].
        """
        return PAPER_REACTION


class ServiceModel:
    """Base class of service dynamics: capacity, service times, outages, feedback and prices.

    A subclass is a frozen pytree dataclass that overrides only what differs from the paper. Its
    methods handle one run, without a batch axis. If a scenario has several service models, the
    largest number of channels, the longest service time and the longest delay apply; a server
    answers if it is available in all models; feedback arrives if no model loses it; and price
    factors are multiplied.

    Attributes:
        channels: c, queries served at a time.
        delay: rounds from the end of an attempt until the policy receives its feedback.
        lasting: whether an attempt may take more than one round.
        neutral: whether the model changes only what is learnt or paid. Under a policy that does
            not learn, the queue is then the same with and without it.
        matches_paper: whether the model, with its settings, is the paper's.
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
        """Return the model with its table in the source's order; itself if it has no table."""
        return self

    def check(self, problem: Problem) -> None:
        """Raise ValueError, in one sentence, for a setting out of range."""

    def draw(self, key: Array, problem: Problem) -> Any:
        """Draw the random numbers of all rounds: a pytree with leaves [T, ...].

        No other model uses `key`.
        """
        return ()

    def available(self, drawn: Any) -> Array | None:
        """Return which servers answer this round, [N] bool; None: all. `drawn`: leaves [...]."""
        return None

    def service_time(self, drawn: Any, place: Array, prompt: Array, servers: Array) -> Array | None:
        """Return how many rounds the attempt takes, [] int32; None: one.

        `place` is the number of the service channel, `prompt` the number of the prompt in the
        dataset, and `servers` [K] the assortment.
        """
        return None

    def feedback_arrives(self, drawn: Any, place: Array) -> Array | None:
        """Return whether the feedback of an attempt that ends reaches the policy; None: always."""
        return None

    def prices(self, drawn: Any) -> Array | None:
        """Return the factors on the servers' prices this round, [N] float; None: 1."""
        return None


class Dynamics(NamedTuple):
    """The user and service models of one run, with their draws.

    Attributes:
        users: user models.
        service: service models.
        user_draws: draws of each user model, leaves [T, c, ...].
        service_draws: draws of each service model, leaves [T, ...].
        patience: [T, A] int32 patience of the queries that arrive, in rounds; None: unlimited.
    """

    users: tuple[UserModel, ...]
    service: tuple[ServiceModel, ...]
    user_draws: tuple[Any, ...]
    service_draws: tuple[Any, ...]
    patience: Array | None

    @property
    def lasting(self) -> bool:
        """Whether an attempt may take more than one round."""
        return any(one.lasting for one in self.service)

    def available(self, round_: Array) -> Array | None:
        """Return which servers answer in a round: [N] bool; None: all."""
        said = [one.available(_at_round(mine, round_)) for one, mine in self._service]
        return _combine(said, jnp.logical_and)

    @property
    def delay(self) -> int:
        """Rounds from the end of an attempt until the policy receives its feedback."""
        return max((one.delay for one in self.service), default=0)

    def service_time(self, round_: Array, place: Array, prompt: Array, servers: Array) -> Array:
        """Return how many rounds an attempt takes that begins in this round: [] int32."""
        longest = jnp.int32(1)
        for one, mine in self._service:
            own = one.service_time(_at_round(mine, round_), place, prompt, servers)
            longest = longest if own is None else jnp.maximum(longest, own)
        return longest

    def feedback_arrives(self, round_: Array, place: Array) -> Array | None:
        """Return whether feedback reaches the policy: [] bool; None: always."""
        said = [one.feedback_arrives(_at_round(mine, round_), place) for one, mine in self._service]
        return _combine(said, jnp.logical_and)

    def prices(self, round_: Array) -> Array | None:
        """Return the factors on prices in a round: [N] float; None: 1."""
        said = [one.prices(_at_round(mine, round_)) for one, mine in self._service]
        return _combine(said, jnp.multiply)

    def react(self, round_: Array, place: Array, attempts: Array) -> Reaction:
        """Return what a user does after a failed attempt."""
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
    """Return the draws for a round."""
    return jax.tree.map(lambda leaf: leaf[round_ - 1], drawn)


def _combine(said: list[Array | None], together: Callable[[Array, Array], Array]) -> Array | None:
    """Combine the values that are not None; return None if all are None."""
    told = [one for one in said if one is not None]
    return functools.reduce(together, told) if told else None


# The methods and attributes by which a model can differ from the paper's.
METHODS: dict[Any, tuple[str, ...]] = {
    UserModel: ("react", "draw_patience"),
    ServiceModel: ("channels", "available", "service_time", "feedback_arrives", "delay", "prices"),
}
# Attributes of a service model that determine shapes, and their least allowed values.
MINIMUM = {"channels": 1, "delay": 0}


@pytree
class Scenario:
    """A source with user and service dynamics that differ from the paper's.

    Attributes:
        source: the source of contexts, utilities and arrivals.
        users: instances of `UserModel`.
        service: instances of `ServiceModel`.
    """

    source: Any
    users: Any = ()
    service: Any = ()

    def problem(self, K: int, horizon: int) -> Problem:
        """Return the source's problem, with the channels and outages of the service models."""
        channels = max((one.channels for one in self.service), default=1)
        outages = any(type(one).available is not ServiceModel.available for one in self.service)
        problem = self._source.problem(K, horizon)
        return problem._replace(channels=channels, outages=outages)

    def check(self, seeds: Any, arrival_rate: float, K: int) -> None:
        """Validate the source and all models.

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
        """Return the source's uniform service per channel, times the number of channels."""
        channels = self.problem(K, 1).channels
        return channels * self._source.uniform_service(seeds, arrival_rate / channels, K)

    def draw_workload(self, key: Array, arrival_rate: Array, problem: Problem) -> Workload:
        """Draw the source's instance."""
        return self._source.draw_workload(key, arrival_rate, problem)

    def draw_dynamics(self, key: Array, problem: Problem) -> Dynamics | None:
        """Draw the random numbers of all models; return None without models (the paper)."""
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
    """Return a key for each model."""
    at_ = rng.stream_key(rng.round_key(key, 0), stream)
    return [jax.random.fold_in(at_, place) for place in range(number)]


def base_source(source: Source) -> Source:
    """Return the source within a scenario; a source without models returns itself."""
    inside: Source = source.source if isinstance(source, Scenario) else source
    return inside


def models_of(source: Source) -> tuple[UserModel | ServiceModel, ...]:
    """Return the user models of a scenario, then its service models; () for a plain source."""
    return (*source.users, *source.service) if isinstance(source, Scenario) else ()


def with_dynamics(
    source: Source, users: Sequence[UserModel], service: Sequence[ServiceModel]
) -> Source:
    """Return a scenario of a source with these models; the source if all are the paper's.

    Raises:
        ContractError: a model has the wrong class, or overrides nothing.
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
    """Check the class and the static settings of a user or service model.

    Args:
        kind: the model.
        base: `UserModel` or `ServiceModel`.

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
    # The models of this package validate these settings themselves, under their fields' names.
    if isinstance(kind, ServiceModel) and contract.is_third_party(kind):
        for key, least in MINIMUM.items():
            value = getattr(kind, key)
            contract.require(
                type(value) is int and value >= least,
                f"{name}.{key} must be a whole number, at least {least}, and it is {value!r}",
            )


def oracle_is_heuristic(source: Source) -> bool:
    """Return whether `optimal` is only a baseline here, neither the paper's oracle nor the best.

    It is if preferences change, or if any model is not neutral.
    """
    changes = any(getattr(one, "changes", False) for one in contract.source_layers(source))
    return changes or not all(getattr(one, "neutral", False) for one in models_of(source))
