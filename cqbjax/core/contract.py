"""The contract of `core.types`, where it can be checked by looking: classes, and actions as played.

Policies and sources of this package are checked by its tests, and pay nothing for it in a run. Any
other is looked at when it is traced (`core.shapes`) and, inside the scan, in every round.
"""

import dataclasses
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax.core.types import Action, Problem, Queue, World


class ContractError(ValueError):
    """A policy or a source breaks the contract of `cqbjax.core.types`; the message says which part.

    One sentence.
    """


def require(holds: bool, otherwise: str) -> None:
    """Raise where a part of the contract does not hold."""
    if not holds:
        raise ContractError(otherwise)


@contextmanager
def naming(whose: str) -> Iterator[None]:
    """Say in front of a breach whose it is."""
    try:
        yield
    except ContractError as error:
        raise ContractError(f"{whose}: {error}") from error


def is_foreign(part: Any) -> bool:
    """Tell whether a policy or a source, or one that it is made of, is none of this package's."""
    if not type(part).__module__.startswith("cqbjax."):
        return True
    fields = dataclasses.fields(part) if dataclasses.is_dataclass(part) else ()
    inside: list[Any] = []
    for field in fields:
        value = getattr(part, field.name)
        inside += value if isinstance(value, tuple | list) else [value]
    return any(is_foreign(one) for one in inside if dataclasses.is_dataclass(type(one)))


def check_class(policy: Any) -> None:
    """Check what can be told without a problem: a registered pytree that says `informed`.

    Raises:
        ContractError: naming the class.
    """
    name = type(policy).__name__
    check_registered(policy)
    told = getattr(policy, "informed", None)
    require(isinstance(told, bool), f"{name}.informed must be True or False, and it is {told!r}")


def check_registered(part: Any) -> None:
    """Check that JAX sees what a policy or a source holds.

    Raises:
        ContractError: naming the class.
    """
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


def no_breach(problem: Problem) -> Breach:
    """Return what is known before round 1."""
    none = jnp.zeros((), jnp.int32)
    return Breach(none, none, jnp.zeros(problem.assortment_size, jnp.int32))


def watch(
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
    fine = are_servers(action.servers, problem.num_servers) & waits(action.slot, queue.arrived)
    first = valid & ~fine & (breach.round == 0)
    now = Breach(round_, action.slot, action.servers)
    return Breach(*(jnp.where(first, new, old) for new, old in zip(now, breach, strict=True)))


def are_servers(servers: Array, num_servers: int) -> Array:
    """Tell whether servers [..., K] are numbers in 0 .. N - 1, distinct and increasing: [...]."""
    inside = (servers[..., 0] >= 0) & (servers[..., -1] < num_servers)
    return inside & jnp.all(servers[..., 1:] > servers[..., :-1], axis=-1)


def waits(slot: Array, arrived: Array) -> Array:
    """Tell whether slots [...] of a queue's `arrived` [..., C] hold a query: [...]."""
    # What lies past the last slot is filled with the least number.
    there = jnp.take_along_axis(arrived, slot[..., None], axis=-1, mode="fill")[..., 0]
    return (slot >= 0) & (there > 0)


# What an instance must be, as `instance_faults` counts.
INSTANCE = (
    "contexts must be finite numbers",
    "utilities must be finite numbers",
    "arrival_rows must be rows of the contexts in every round with an arrival",
    "prompts must be numbers of the dataset's prompts, or of the rows without one",
    "arrives must lie in 0 .. arrivals_a_round",
    "logged.next must be rows of the contexts",
)


@functools.partial(jax.jit, static_argnums=0)
def instance_faults(problem: Problem, world: World, arrives: Array) -> Array:
    """Tell what is wrong with the instances of a batch: [S], 0 or the place in `INSTANCE` from 1.

    Args:
        problem: the shapes.
        world: leaves [S, ...].
        arrives: [S, T] A(t), or how many arrive.
    """

    def one(world: World, arrives: Array) -> Array:
        prompts, most = world.prompts, problem.arrivals_a_round
        rows = world.arrival_rows.reshape(-1, most)
        following = jnp.zeros(1, int) if world.logged is None else world.logged.next
        coming = jnp.arange(most) < arrives[:, None]
        wrong = (
            ~jnp.all(jnp.isfinite(world.contexts)),
            ~jnp.all(jnp.isfinite(world.utilities)),
            jnp.any(coming & ((rows < 0) | (rows >= problem.num_rows))),
            jnp.any((prompts < 0) | (prompts >= (problem.num_prompts or problem.num_rows))),
            jnp.any((arrives < 0) | (arrives > most)),
            jnp.any((following < 0) | (following >= problem.num_rows)),
        )
        return jnp.select(wrong, range(1, len(wrong) + 1), 0)

    return jax.vmap(one)(world, arrives)


def sentence(problem: Problem, round_: int, slot: int, servers: Any) -> str:
    """Say in which way the action of a round breaks the contract."""
    chosen, number = np.asarray(servers), problem.num_servers
    if not bool(are_servers(jnp.asarray(chosen), number)):
        return (
            f"select must return {problem.assortment_size} distinct server numbers in "
            f"0..{number - 1}, increasing, and in round {round_} it returns {chosen.tolist()}"
        )
    return f"select must pick a waiting query, and slot {slot} of round {round_} holds none"
