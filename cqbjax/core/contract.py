"""Checks of the contract of `core.types`: of classes, and of the actions in every round.

The tests check the policies, sources and models of this package, so that runs need not. Third-party
objects are also checked by tracing and by their draws (`core.conformance`).
"""

import dataclasses
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
# The most characters of a third-party error's message.
MAX_MESSAGE = 200
# Methods that a policy and a source must have (`core.types`).
POLICY_METHODS = ("init", "select", "update")
SOURCE_METHODS = ("problem", "check", "uniform_service", "draw_workload")
# Attributes that `Needs` replaced -> the value that had an effect, and the field to use now.
REPLACED_BY_NEEDS = {
    "informed": (True, "true_utilities=True"), "blind": (True, "contexts=False"),
    "retry_aware": (True, "offer_counts=True"), "entry_aware": (True, "entry_rounds=True"),
    "mixed": (True, "smaller_assortments=True"), "emitters": (False, "fusion_emitters=False"),
}  # fmt: skip


class ContractError(ValueError):
    """A class or value breaks the contract of `cqbjax.core.types` or `cqbjax.core.scenario`.

    The message is one sentence that names the part of the contract.
    """


def require(holds: bool, otherwise: str) -> None:
    """Raise ContractError with the message `otherwise` unless `holds`."""
    if not holds:
        raise ContractError(otherwise)


def policy_error(policy: Any, problem: Problem) -> str | None:
    """Return why a policy is not defined for a problem, or None if it is defined."""
    try:
        if hasattr(policy, "check"):
            policy.check(problem)
    except ValueError as error:
        return str(error)
    return None


@contextmanager
def prefix_errors(whose: str) -> Iterator[None]:
    """Put `whose` in front of the message of a `ContractError` that is raised inside.

    Other errors in third-party methods become a `ContractError` that names the method and line,
    except `ValueError`, whose message names the setting already.
    """
    try:
        yield
    except ContractError as error:
        raise ContractError(f"{whose}: {error}") from error
    except Exception as error:
        told = "" if type(error) is ValueError else _describe_error(error)
        if not told:
            raise
        raise ContractError(f"{whose}: {told}") from error


def _describe_error(error: Exception) -> str:
    """Return a message that names the third-party method that raised, or "" without one."""
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        code = frame.f_code
        first = code.co_varnames[0] if code.co_argcount else ""
        kind = type(frame.f_locals.get(first))
        if first == "self" and not _is_cqbjax(kind):
            method, where = f"{kind.__name__}.{code.co_name}", Path(code.co_filename).name
            if isinstance(error, TRACER_ERRORS):
                return (
                    f"{method} asks for the value of a traced array, in line {line} of {where}: "
                    "write jnp.where in place of if, and no bool, int, float or numpy there"
                )
            said = " ".join(str(error).split())[:MAX_MESSAGE]
            return f"{method} raises {type(error).__name__}, in line {line} of {where}: {said}"
    return ""


def _is_cqbjax(kind: type) -> bool:
    return kind.__module__.startswith("cqbjax.")


def is_third_party(part: Any) -> bool:
    """Return whether a part, or a part inside it, has a class from outside this package."""
    return find_third_party(part) is not None


def find_third_party(part: Any) -> Any:
    """Return the first of a part and the parts inside it that is third-party, or None."""
    if not _is_cqbjax(type(part)):
        return part
    fields = dataclasses.fields(part) if dataclasses.is_dataclass(part) else ()
    inside: list[Any] = []
    for field in fields:
        value = getattr(part, field.name)
        inside += value if isinstance(value, tuple | list) else [value]
    found = (find_third_party(one) for one in inside if dataclasses.is_dataclass(type(one)))
    return next((one for one in found if one is not None), None)


def source_layers(source: Any) -> list[Any]:
    """Return a source, the source that it wraps, and so on."""
    inside = [source]
    while _is_cqbjax(type(inside[-1])) and hasattr(inside[-1], "source"):
        inside.append(inside[-1].source)
    return inside


def check_source_class(source: Any) -> None:
    """Check the class of a source, and of the sources that it wraps.

    Raises:
        ContractError: naming the class.
    """
    for one in source_layers(source):
        check_registered(one)
        check_methods(one, *SOURCE_METHODS)


def check_class(policy: Any) -> None:
    """Check the class of a policy.

    It must be an instance of a registered pytree with all methods, and `needs` must be `Needs`.

    Raises:
        ContractError: naming the class.
    """
    check_registered(policy)
    check_methods(policy, *POLICY_METHODS)
    name, needs = type(policy).__name__, read_needs(policy)
    fine = isinstance(needs, Needs) and all(isinstance(one, bool) for one in needs)
    require(fine, f"{name}.needs must be Needs of True and False, and it is {needs!r}")
    for old, (value, now) in REPLACED_BY_NEEDS.items():
        unread = getattr(policy, old, None) is value
        require(not unread, f"{name}.{old} is not read any more: declare needs = Needs({now})")
    if isinstance(policy, Wrapper):
        check_class(policy.policy)


def check_methods(part: Any, *methods: str) -> None:
    """Check that a part has these methods.

    Raises:
        ContractError: naming the class and the first missing method.
    """
    for method in methods:
        require(
            callable(getattr(part, method, None)),
            f"{type(part).__name__} lacks the method {method}, one of {', '.join(methods)}",
        )


def check_instance(part: Any) -> None:
    """Check that a part is an instance, not a class.

    Raises:
        ContractError: naming the class.
    """
    name = getattr(part, "__name__", "")
    require(not isinstance(part, type), f"{name} is a class: give an instance of it, {name}(...)")


def check_registered(part: Any) -> None:
    """Check that a policy, a source or a model is registered as a JAX pytree.

    Raises:
        ContractError: naming the class.
    """
    check_instance(part)
    require(
        not any(leaf is part for leaf in jax.tree.leaves(part)),
        f"{type(part).__name__} must be registered as a pytree: decorate it with "
        "core.pytree.pytree",
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
    """Return the breach before round 1: none."""
    none = jnp.zeros((), jnp.int32)
    return Breach(none, none, jnp.zeros(problem.assortment_size, jnp.int32))


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
    fine = are_valid_servers(servers, problem.num_servers) & holds_query(action.slot, queue.arrived)
    first = valid & ~fine & (breach.round == 0)
    now = Breach(round_, action.slot, servers)
    return Breach(*(jnp.where(first, new, old) for new, old in zip(now, breach, strict=True)))


def offered_servers(action: Action) -> Array:
    """Return the servers [..., K] of actions; all are `NO_SERVER` if no server is shown."""
    if action.shown is None:
        return action.servers
    return jnp.where(jnp.any(action.shown, axis=-1, keepdims=True), action.servers, NO_SERVER)


def are_valid_servers(servers: Array, num_servers: int) -> Array:
    """Return whether servers [..., K] are distinct, increasing, and in 0 .. N - 1: [...] bool."""
    inside = (servers[..., 0] >= 0) & (servers[..., -1] < num_servers)
    return inside & jnp.all(servers[..., 1:] > servers[..., :-1], axis=-1)


def holds_query(slot: Array, arrived: Array) -> Array:
    """Return whether slots [...] of a queue's `arrived` [..., C] hold a query: [...] bool."""
    # An index past the last slot reads the smallest integer, which is not above 0.
    there = jnp.take_along_axis(arrived, slot[..., None], axis=-1, mode="fill")[..., 0]
    return (slot >= 0) & (there > 0)


def describe_breach(problem: Problem, round_: int, slot: int, servers: Any) -> str:
    """Return a sentence about how an action breaks the contract."""
    chosen, number = np.asarray(servers), problem.num_servers
    if (chosen == NO_SERVER).all():
        return f"select must show a server in every round, and in round {round_} it shows none"
    if not bool(are_valid_servers(jnp.asarray(chosen), number)):
        return (
            f"select must return {problem.assortment_size} distinct server numbers in "
            f"0..{number - 1}, increasing, and in round {round_} it returns {chosen.tolist()}"
        )
    return f"select must pick a waiting query, and slot {slot} of round {round_} holds none"
