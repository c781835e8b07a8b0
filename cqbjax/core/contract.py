"""Checks of the contract of `core.types`: of classes, and of the actions in every round.

The tests check the policies, sources and models of this package, so that runs need not. Third-party
objects are also checked by tracing and by their draws (`core.conformance`).
"""

import dataclasses
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax.core.types import NO_SERVER, Action, Needs, Problem, Queue, Wrapper, read_needs

# JAX's errors when Python reads the value of a traced array.
TRACER_ERRORS = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)
# Packages whose methods are not a user's.
PACKAGES = ("cqbjax", "jax", "jaxlib", "numpy")
# Methods that raise a plain ValueError to refuse settings.
SETTINGS_METHODS = ("check", "problem")
# The most characters of a third-party error's message.
MAX_MESSAGE = 200
# Methods that a policy and a source must have (`core.types`).
POLICY_METHODS = ("init", "select", "update")
SOURCE_METHODS = ("problem", "check", "uniform_service", "draw_workload")


class ContractError(ValueError):
    """A breach of the contract of `cqbjax.core.types` or `core.scenario`, in one sentence."""


def require(condition: bool, message: str) -> None:
    """Raise ContractError unless a condition of the contract holds."""
    if not condition:
        raise ContractError(message)


def policy_error(policy: Any, problem: Problem) -> str | None:
    """Return why a policy does not accept a problem; None if it does."""
    try:
        if hasattr(policy, "check"):
            policy.check(problem)
    except ValueError as error:
        return str(error)
    return None


@contextmanager
def prefix_errors(prefix: str) -> Iterator[None]:
    """Prefix the messages of contract errors, and turn errors of user-defined code into them.

    A plain `ValueError` of this package, or of a method that validates settings, passes unchanged.
    """
    try:
        yield
    except ContractError as error:
        raise ContractError(f"{prefix}: {error}") from error
    except Exception as error:
        description = _describe_error(error)
        if not description:
            raise
        raise ContractError(f"{prefix}: {description}") from error


def _describe_error(error: Exception) -> str:
    """Return a message that names the third-party method that raised, or "" without one."""
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        code = frame.f_code
        is_method = code.co_argcount and code.co_varnames[0] == "self"
        if is_method and frame.f_globals.get("__name__", "").split(".")[0] not in PACKAGES:
            if type(error) is ValueError and code.co_name in SETTINGS_METHODS:
                return ""
            method = f"{type(frame.f_locals.get('self')).__name__}.{code.co_name}"
            where = Path(code.co_filename).name
            if isinstance(error, TRACER_ERRORS):
                return (
                    f"{method} asks for the value of a traced array, in line {line} of {where}: "
                    "write jnp.where in place of if, and no bool, int, float or numpy there"
                )
            text = re.sub(r"[.!?] (?=[A-Z])", "; ", " ".join(str(error).split()))[:MAX_MESSAGE]
            return f"{method} raises {type(error).__name__}, in line {line} of {where}: {text}"
    return ""


def is_third_party(part: Any) -> bool:
    """Return whether a part, or a part inside it, has a class from outside this package."""
    return find_third_party(part) is not None


def find_third_party(part: Any) -> Any:
    """Return the first of a part and the parts inside it that is third-party, or None."""
    if not type(part).__module__.startswith("cqbjax."):
        return part
    fields = dataclasses.fields(part) if dataclasses.is_dataclass(part) else ()
    inner: list[Any] = []
    for field in fields:
        value = getattr(part, field.name)
        inner += value if isinstance(value, tuple | list) else [value]
    found = (find_third_party(value) for value in inner if dataclasses.is_dataclass(type(value)))
    return next((part for part in found if part is not None), None)


def source_layers(source: Any) -> list[Any]:
    """Return a source, the source that it wraps, and so on inwards."""
    layers = [source]
    while type(layers[-1]).__module__.startswith("cqbjax.") and hasattr(layers[-1], "source"):
        layers.append(layers[-1].source)
    return layers


def check_source_class(source: Any) -> None:
    """Check that a source, and each source that it wraps, is a pytree with all methods.

    Raises:
        ContractError: naming the class.
    """
    for layer in source_layers(source):
        check_registered(layer, *SOURCE_METHODS)


def check_class(policy: Any) -> None:
    """Check the class of a policy.

    It must be an instance of a registered pytree with all methods, and `needs` must be `Needs`.

    Raises:
        ContractError: naming the class.
    """
    check_registered(policy, *POLICY_METHODS)
    name, needs = type(policy).__name__, read_needs(policy)
    valid = isinstance(needs, Needs) and all(isinstance(need, bool) for need in needs)
    require(valid, f"{name}.needs must be Needs of True and False, and it is {needs!r}")
    if isinstance(policy, Wrapper):
        check_class(policy.policy)


def check_instance(part: Any) -> None:
    """Raise ContractError, naming the class, for a class in place of an instance."""
    name = getattr(part, "__name__", "")
    require(not isinstance(part, type), f"{name} is a class: give an instance of it, {name}(...)")


def check_registered(part: Any, *methods: str) -> None:
    """Check that a policy, a source or a model is registered as a JAX pytree, with these methods.

    Raises:
        ContractError: naming the class, and the first missing method.
    """
    check_instance(part)
    name = type(part).__name__
    require(
        not any(leaf is part for leaf in jax.tree.leaves(part)),
        f"{name} must be registered as a pytree: decorate it with core.pytree.pytree",
    )
    for method in methods:
        require(
            callable(getattr(part, method, None)),
            f"{name} lacks the method {method}, one of {', '.join(methods)}",
        )


class Breach(NamedTuple):
    """The first action of a run that breaks the contract.

    Attributes:
        round: [] int32 round of the action, 0 if no action broke the contract.
        slot: [] int32 the action's slot.
        servers: [K] int32 the action's servers.
    """

    round: Array
    slot: Array
    servers: Array


def empty_breach(problem: Problem) -> Breach:
    """Return the breach before round 1."""
    zero = jnp.zeros((), jnp.int32)
    return Breach(zero, zero, jnp.zeros(problem.assortment_size, jnp.int32))


def record_breach(
    breach: Breach, problem: Problem, queue: Queue, action: Action, round_: Array, valid: Array
) -> Breach:
    """Record an action that breaks the contract, if it is the first in the run.

    Args:
        breach: the breach recorded so far.
        problem: the static settings.
        queue: [C] the queue that the policy saw.
        action: the policy's decision.
        round_: [] int32 t.
        valid: [] bool whether a query was waiting; if not, the action is not checked.
    """
    servers = offered_servers(action)
    right = are_valid_servers(servers, problem.num_servers) & holds_query(
        action.slot, queue.arrived
    )
    first = valid & ~right & (breach.round == 0)
    here = Breach(round_, action.slot, servers)
    return Breach(*(jnp.where(first, new, old) for new, old in zip(here, breach, strict=True)))


def offered_servers(action: Action) -> Array:
    """Return the servers [..., K] of actions; all are `NO_SERVER` in an action that offers none."""
    if action.offered is None:
        return action.servers
    return jnp.where(jnp.any(action.offered, axis=-1, keepdims=True), action.servers, NO_SERVER)


def are_valid_servers(servers: Array, num_servers: int) -> Array:
    """Return whether servers [..., K] are distinct, increasing, and in 0 .. N - 1: [...] bool."""
    inside = (servers[..., 0] >= 0) & (servers[..., -1] < num_servers)
    return inside & jnp.all(servers[..., 1:] > servers[..., :-1], axis=-1)


def holds_query(slot: Array, arrived: Array) -> Array:
    """Tell whether slots [...] of a queue's `arrived` [..., C] hold a query: [...]."""
    # A slot past the last is filled with the smallest integer.
    arrival = jnp.take_along_axis(arrived, slot[..., None], axis=-1, mode="fill")[..., 0]
    return (slot >= 0) & (arrival > 0)


def describe_breach(problem: Problem, round_: int, slot: int, servers: Any) -> str:
    """Describe how the action of a round breaks the contract."""
    selected, number = np.asarray(servers), problem.num_servers
    if (selected == NO_SERVER).all():
        return f"select must offer a server in every round, and in round {round_} it offers none"
    if not bool(are_valid_servers(jnp.asarray(selected), number)):
        return (
            f"select must return {problem.assortment_size} distinct server numbers in "
            f"0..{number - 1}, increasing, and in round {round_} it returns {selected.tolist()}"
        )
    return f"select must pick a waiting query, and slot {slot} of round {round_} holds none"
