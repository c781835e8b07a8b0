"""A scenario: a source with user and service dynamics that extend the paper's model.

In the paper, an unsatisfied query waits for the next round, one query is served per round, and all
LLMs are always available. Subclasses of `UserModel` and `ServiceModel` define other dynamics (see
`cqbjax.dynamics`). A model draws all its random numbers before the first round, from the run's key,
so that all policies see the same ones.
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
        abandons: [] bool whether the user abandons.
        looks_satisfied: [] bool whether the service mistakes the abandonment for satisfaction.
        return_delay: [] int32 rounds until the query waits again; in the paper 1, the next round.
    """

    abandons: Array
    looks_satisfied: Array
    return_delay: Array


_FALSE: Any = np.bool_(False)
_NEXT_ROUND: Any = np.int32(1)
#: The paper's user waits again in the next round.
PAPER_REACTION = Reaction(_FALSE, _FALSE, _NEXT_ROUND)


class DynamicsModel:
    """The base class of user and service models: a frozen pytree dataclass.

    Its methods are written for one run. Axis letters are those of `cqbjax.core.types`.

    Attributes:
        matches_paper: whether the model is the paper's, so that it need not be simulated.
    """

    matches_paper: bool = False

    def check(self, problem: Problem) -> None:
        """Raise ValueError, in one sentence, for a setting out of range."""

    def draw(self, key: Array, problem: Problem) -> Any:
        """Draw all random numbers of a run; `key` differs from those of other models.

        Returns:
            A tree whose leaves are [T, c, ...] for a user model, [T, ...] for a service model.
        """
        return ()


class UserModel(DynamicsModel):
    """Behaviour of users who are not satisfied. A subclass overrides what differs from the paper.

    Models combine: a query abandons if any model says so; its return delay is the maximum and its
    patience is the minimum.
    """

    def draw_patience(self, key: Array, problem: Problem) -> Array | None:
        """Draw the patience of each arriving query: [T, A] int32.

        Patience is the number of unserved rounds after which the user abandons. None: users wait
        for any number of rounds.
        """
        return None

    def react(self, drawn: Any, attempts: Array) -> Reaction:
        """Return what a user does after a failed attempt, the `attempts`-th ([] int32, from 1).

        `drawn` is what `draw` returned for this round and service channel, without the axes T, c.
        """
        return PAPER_REACTION


class ServiceModel(DynamicsModel):
    """What the service can do in a round. A subclass overrides what differs from the paper.

    A scenario combines its models. Its number of channels, service time and feedback delay are the
    maxima over the models. A server is available, and feedback arrives, only if all models say so.
    Price factors are multiplied.

    Attributes:
        channels: c, attempts at a time.
        delay: rounds between the end of an attempt and its feedback.
        multi_round: whether an attempt may take more than one round.
        neutral: whether the model changes only feedback and prices. The queue of a policy that does
            not learn is then the same as in the paper's service.
    """

    delay: int = 0
    multi_round: bool = False
    neutral: bool = False

    @property
    def channels(self) -> int:
        """Return c."""
        return 1

    def join_names(self, names: TableNames | None) -> Self:
        """Return the model with its tables in the order of a source's prompts and servers."""
        return self

    def available(self, drawn: Any) -> Array | None:
        """Return which servers answer in a round: [N] bool; None: all.

        `drawn` is what `draw` returned for this round, without the axis T.
        """
        return None

    def service_time(
        self, drawn: Any, channel: Array, prompt: Array, servers: Array
    ) -> Array | None:
        """Return how many rounds an attempt takes: [] int32; None: one.

        `channel` is the number of the service channel, `prompt` is the number of the prompt in the
        dataset, and `servers` [K] is the assortment.
        """
        return None

    def feedback_arrives(self, drawn: Any, channel: Array) -> Array | None:
        """Return whether the feedback of an attempt that ends reaches the policy: [] bool.

        None: always.
        """
        return None

    def prices(self, drawn: Any) -> Array | None:
        """Return the factors on the servers' prices this round, [N] float; None: 1."""
        return None


# How a scenario combines the values of its service models, by method.
COMBINED: dict[str, Callable[[Array, Array], Array]] = {
    "available": jnp.logical_and, "service_time": jnp.maximum,
    "feedback_arrives": jnp.logical_and, "prices": jnp.multiply,
}  # fmt: skip


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
    def multi_round(self) -> bool:
        """Whether an attempt may take more than one round."""
        return any(model.multi_round for model in self.service)

    @property
    def delay(self) -> int:
        """Rounds between the end of an attempt and its feedback."""
        return max((model.delay for model in self.service), default=0)

    def react(self, round_: Array, channel: Array, attempts: Array) -> Reaction:
        """Return what the user of a failed attempt does."""
        abandons, looks_satisfied, return_delay = PAPER_REACTION
        for model, drawn in zip(self.users, self.user_draws, strict=True):
            here = jax.tree.map(lambda leaf: leaf[round_ - 1, channel], drawn)
            reaction = model.react(here, attempts)
            abandons = abandons | reaction.abandons
            looks_satisfied = looks_satisfied | (reaction.abandons & reaction.looks_satisfied)
            return_delay = jnp.maximum(return_delay, reaction.return_delay)
        return Reaction(abandons, looks_satisfied, return_delay)

    def combine(self, method: str, round_: Array, *args: Array) -> Array | None:
        """Return what the service models return by a method, combined by `COMBINED`.

        Args:
            method: `available`, `service_time`, `feedback_arrives` or `prices`.
            round_: [] int32 t.
            *args: the further arguments of the method.

        Returns:
            None if all models return None.
        """
        values = []
        for model, drawn in zip(self.service, self.service_draws, strict=True):
            here = jax.tree.map(lambda leaf: leaf[round_ - 1], drawn)
            value = getattr(model, method)(here, *args)
            values += [] if value is None else [value]
        return functools.reduce(COMBINED[method], values) if values else None


# The members by which a model differs from the paper's.
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
        """Return the source's shapes, with the number of channels."""
        channels = max((model.channels for model in self.service), default=1)
        outages = any(type(model).available is not ServiceModel.available for model in self.service)
        return self.source.problem(K, horizon)._replace(channels=channels, outages=outages)

    def check(self, seeds: Any, arrival_rate: float, K: int) -> None:
        """Validate the models and the source.

        Raises:
            ValueError: in one sentence, naming the setting.
        """
        problem = self.problem(K, 1)
        for model in (*self.users, *self.service):
            model.check(problem)
        if problem.channels > 1 and hasattr(self.source, "process"):
            self.source.check(seeds, arrival_rate, K, problem.channels)
        else:
            self.source.check(seeds, arrival_rate / problem.channels, K)
        if problem.channels > 1 and problem.age_column is not None:
            raise ValueError("count must be 1 where a log is replayed")

    def uniform_service(self, seeds: Any, arrival_rate: float, K: int) -> float:
        """Return the source's uniform service per channel, times the number of channels."""
        channels = self.problem(K, 1).channels
        return float(channels * self.source.uniform_service(seeds, arrival_rate / channels, K))

    def draw_workload(self, key: Array, arrival_rate: Array, problem: Problem) -> Workload:
        """Draw the source's workload."""
        return self.source.draw_workload(key, arrival_rate, problem)

    def draw_dynamics(self, key: Array, problem: Problem) -> Dynamics | None:
        """Draw the random numbers of all models; return None without models (the paper)."""
        if not self.users and not self.service:
            return None
        users, service = tuple(self.users), tuple(self.service)

        def draw(method: str, models: tuple[Any, ...], stream: rng.Stream) -> list[Any]:
            own = rng.stream_key(rng.round_key(key, 0), stream)
            keys = [jax.random.fold_in(own, number) for number in range(len(models))]
            return [getattr(m, method)(k, problem) for m, k in zip(models, keys, strict=True)]

        user_draws = tuple(draw("draw", users, rng.Stream.USERS))
        service_draws = tuple(draw("draw", service, rng.Stream.SERVICE))
        patience = draw("draw_patience", users, rng.Stream.PATIENCE)
        limits = [rounds for rounds in patience if rounds is not None]
        least = functools.reduce(jnp.minimum, limits) if limits else None
        return Dynamics(users, service, user_draws, service_draws, least)


def base_source(source: Source) -> Source:
    """Return a source without its user and service models."""
    return source.source if isinstance(source, Scenario) else source


def models_of(source: Source) -> tuple[UserModel | ServiceModel, ...]:
    """Return the user models and then the service models around a source."""
    return (*source.users, *source.service) if isinstance(source, Scenario) else ()


def with_dynamics(
    source: Source, users: Sequence[UserModel], service: Sequence[ServiceModel]
) -> Source:
    """Return a scenario of a source with these models; the source if all are the paper's.

    Raises:
        ContractError: a model has the wrong class, or overrides nothing.
    """
    for key, base, models in (("users", UserModel, users), ("service", ServiceModel, service)):
        with contract.prefix_errors(key):
            contract.require(isinstance(models, list | tuple), "must be a list of models")
            for model in models:
                check_model(model, base)
    names = getattr(contract.source_layers(source)[-1], "names", None)
    service = [model.join_names(names) for model in service]
    active = [tuple(m for m in models if not m.matches_paper) for models in (users, service)]
    return Scenario(source=source, users=active[0], service=active[1]) if any(active) else source


def check_model(model: Any, base: type) -> None:
    """Validate the class of a user or service model, without drawing.

    Args:
        model: an instance.
        base: `UserModel` or `ServiceModel`.

    Raises:
        ContractError: naming the class.
    """
    contract.check_registered(model)
    name = type(model).__name__
    contract.require(
        isinstance(model, base), f"{name} must be a subclass of cqbjax.{base.__name__}"
    )
    overrides = any(
        getattr(type(model), member, None) is not getattr(base, member) for member in METHODS[base]
    )
    contract.require(
        model.matches_paper or overrides,
        f"{name} must override at least one of {', '.join(METHODS[base])}",
    )
    # The models of this package validate their settings themselves, by the names of their keys.
    if isinstance(model, ServiceModel) and contract.is_third_party(model):
        for key, least in MINIMUM.items():
            value = getattr(model, key)
            contract.require(
                type(value) is int and value >= least,
                f"{name}.{key} must be a whole number, at least {least}, and it is {value!r}",
            )


def oracle_is_heuristic(source: Source) -> bool:
    """Return whether `optimal` is only a baseline, neither the paper's oracle nor the best policy.

    This is the case if preferences change, or if any model is not neutral.
    """
    changes = any(getattr(layer, "changes", False) for layer in contract.source_layers(source))
    return changes or not all(getattr(model, "neutral", False) for model in models_of(source))
