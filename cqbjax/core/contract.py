"""The contract of `core.types`, where it can be checked by looking: classes, and actions as played.

The tests check the policies, sources and models of this package, so that runs need not. Third-party
ones are checked when traced and by what they draw (`core.conformance`), and in every round.
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

# What JAX says when Python asks for the value of a traced array.
TRACER_ERRORS = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)
# Letters of an error that is none of this package's.
MAX_MESSAGE = 200
# What has to be there, of a policy and of a source (`core.types`).
POLICY_METHODS = ("init", "select", "update")
SOURCE_METHODS = ("problem", "check", "uniform_service", "draw_workload")
# Attributes that `Needs` replaced: the value that meant something, and the field that says it now.
REPLACED_BY_NEEDS = {
    "informed": (True, "true_utilities=True"), "blind": (True, "contexts=False"),
    "retry_aware": (True, "offer_counts=True"), "entry_aware": (True, "entry_rounds=True"),
    "mixed": (True, "smaller_assortments=True"), "emitters": (False, "fusion_emitters=False"),
}  # fmt: skip


class ContractError(ValueError):
    """Something breaks the contract of `cqbjax.core.types` or `core.scenario`; it says which part.

    One sentence.
    """


def require(holds: bool, otherwise: str) -> None:
    """Raise where a part of the contract does not hold."""
    if not holds:
        raise ContractError(otherwise)


def policy_error(policy: Any, problem: Problem) -> str | None:
    """Return why a policy is not defined for a problem; None where it is."""
    try:
        if hasattr(policy, "check"):
            policy.check(problem)
    except ValueError as error:
        return str(error)
    return None


@contextmanager
def prefix_errors(whose: str) -> Iterator[None]:
    """Say in front of a breach whose it is; to raise is one, and so to ask for a traced value.

    A `ValueError` is a refusal, and says itself what it is about.
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
    """Say which method of whose raised; nothing where it is this package's."""
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
    """Tell whether a policy or a source, or one that it is made of, is none of this package's."""
    return find_third_party(part) is not None


def find_third_party(part: Any) -> Any:
    """Return the first that is none of this package's, of a part and those inside it, or None."""
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
    """Return a source, the one that it is around, and so on."""
    inside = [source]
    while _is_cqbjax(type(inside[-1])) and hasattr(inside[-1], "source"):
        inside.append(inside[-1].source)
    return inside


def check_source_class(source: Any) -> None:
    """Check what can be told of a source by looking, and of those inside it.

    Raises:
        ContractError: naming the class.
    """
    for one in source_layers(source):
        check_registered(one)
        check_methods(one, *SOURCE_METHODS)


def check_class(policy: Any) -> None:
    """Check what can be told of a policy without a problem.

    It is an instance of a registered pytree, has all methods, and its `needs` are `Needs`.

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
    """Check that methods are there.

    Raises:
        ContractError: naming the class and the first one that is not.
    """
    for method in methods:
        require(
            callable(getattr(part, method, None)),
            f"{type(part).__name__} lacks the method {method}, one of {', '.join(methods)}",
        )


def check_instance(part: Any) -> None:
    """Refuse a class in place of an instance.

    Raises:
        ContractError: naming the class.
    """
    name = getattr(part, "__name__", "")
    require(not isinstance(part, type), f"{name} is a class: give an instance of it, {name}(...)")


def check_registered(part: Any) -> None:
    """Check that JAX sees what a policy, a source or a kind holds.

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
        round: [] int32 when, 0 if none did.
        slot: [] int32 its slot.
        servers: [K] int32 its servers.
    """

    round: Array
    slot: Array
    servers: Array


def empty_breach(problem: Problem) -> Breach:
    """Return what is known before round 1."""
    none = jnp.zeros((), jnp.int32)
    return Breach(none, none, jnp.zeros(problem.assortment_size, jnp.int32))


def record_breach(
    breach: Breach, problem: Problem, queue: Queue, action: Action, round_: Array, valid: Array
) -> Breach:
    """Remember an action that breaks the contract, if it is the first; an empty queue's is none.

    Args:
        breach: so far.
        problem: the shapes.
        queue: [C] as the policy saw it.
        action: what it decided.
        round_: [] int32 t.
        valid: [] bool whether a query waited.
    """
    servers = offered_servers(action)
    fine = are_valid_servers(servers, problem.num_servers) & holds_query(action.slot, queue.arrived)
    first = valid & ~fine & (breach.round == 0)
    now = Breach(round_, action.slot, servers)
    return Breach(*(jnp.where(first, new, old) for new, old in zip(now, breach, strict=True)))


def offered_servers(action: Action) -> Array:
    """Return the servers [..., K] of actions, `NOBODY` all of them where none is shown."""
    if action.shown is None:
        return action.servers
    return jnp.where(jnp.any(action.shown, axis=-1, keepdims=True), action.servers, NO_SERVER)


def are_valid_servers(servers: Array, num_servers: int) -> Array:
    """Tell whether servers [..., K] are numbers in 0 .. N - 1, distinct and increasing: [...]."""
    inside = (servers[..., 0] >= 0) & (servers[..., -1] < num_servers)
    return inside & jnp.all(servers[..., 1:] > servers[..., :-1], axis=-1)


def holds_query(slot: Array, arrived: Array) -> Array:
    """Tell whether slots [...] of a queue's `arrived` [..., C] hold a query: [...]."""
    # What lies past the last slot is filled with the least number.
    there = jnp.take_along_axis(arrived, slot[..., None], axis=-1, mode="fill")[..., 0]
    return (slot >= 0) & (there > 0)


def describe_breach(problem: Problem, round_: int, slot: int, servers: Any) -> str:
    """Say in which way the action of a round breaks the contract."""
    chosen, number = np.asarray(servers), problem.num_servers
    if (chosen == NO_SERVER).all():
        return f"select must show a server in every round, and in round {round_} it shows none"
    if not bool(are_valid_servers(jnp.asarray(chosen), number)):
        return (
            f"select must return {problem.assortment_size} distinct server numbers in "
            f"0..{number - 1}, increasing, and in round {round_} it returns {chosen.tolist()}"
        )
    return f"select must pick a waiting query, and slot {slot} of round {round_} holds none"
