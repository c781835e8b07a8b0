"""Shapes and types that the contract of `core.types` asks for, checked by tracing: nothing runs."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from cqbjax.core import pytree, rng, simulate
from cqbjax.core.contract import require
from cqbjax.core.recorders import Recorder
from cqbjax.core.rules import Reaction, Rules, Service, Users
from cqbjax.core.types import (
    Action,
    Feedback,
    Policy,
    Problem,
    Source,
    has_own_arrivals,
    read_needs,
)
from cqbjax.core.world import Billed, Logged, World


def check_policy(policy: Policy, problem: Problem) -> None:
    """Check the shapes and types of an action, and that a state keeps its own over a round.

    Args:
        policy: its leaves may be shapes alone.
        problem: the shapes.

    Raises:
        ContractError: naming the part, and what is allowed.
    """

    def one_round(policy: Policy, world: World, round_: Array, told: Any) -> Any:
        instance = simulate.Instance(rng.run_key(0), world, jnp.zeros(0), jnp.zeros(0))
        carry = simulate.start(policy, problem, instance, problem.horizon)
        seen = simulate.observe(policy, problem, instance, carry, round_)
        action = policy.select(rng.run_key(0), carry.state, seen)
        require(
            isinstance(action, Action),
            f"select must return an Action, and it returns {type(action).__name__}",
        )
        return carry.state, action, policy.update(carry.state, seen, action, told)

    number = None if problem.places == 1 else _whole(())
    told = Feedback(_whole(()), _truth(()), number)
    before, action, after = jax.eval_shape(one_round, policy, _world(problem), _whole(()), told)
    servers = (problem.assortment_size,)
    _check("Action", "select", action, slot=((), jnp.int32), servers=(servers, jnp.int32),
           explored=((), jnp.bool_))  # fmt: skip
    if read_needs(policy).smaller_assortments:
        _check("Action", "select", action, shown=(servers, jnp.bool_))
    else:
        require(
            action.shown is None,
            "select must leave Action.shown out, or the policy's needs must "
            "say smaller_assortments=True",
        )
    require(
        str(jax.tree.structure(before)) == str(jax.tree.structure(after)),
        "update must return a state of the structure that init returns",
    )
    pairs = zip(jax.tree_util.tree_leaves_with_path(before), jax.tree.leaves(after), strict=True)
    for (path, old), new in pairs:
        require(
            (old.shape, old.dtype) == (new.shape, new.dtype),
            f"update must keep shapes and types, and state{jax.tree_util.keystr(path)} turns from "
            f"{_told(old)} to {_told(new)}",
        )


def check_source(source: Source, problem: Problem) -> None:
    """Check the shapes and types of a run's instance, and of its own arrivals if it has any.

    Args:
        source: its leaves may be shapes alone.
        problem: from `source.problem`.

    Raises:
        ContractError: naming the part, and what is allowed.
    """
    most = problem.arrivals_a_round
    require(
        most == 1 or (most > 1 and has_own_arrivals(source)),
        f"arrivals_a_round={most} must be 1, or more with a method `arrives`",
    )

    def draw(source: Source, rate: Array) -> tuple[World, Any]:
        key, own = rng.run_key(0), None
        world = source.world(key, rate, problem)
        require(
            isinstance(world, World),
            f"world must return a World, and it returns {type(world).__name__}",
        )
        if has_own_arrivals(source):
            own = source.arrives(key, rate, problem.horizon)
        return world, own

    rate = jax.ShapeDtypeStruct((), jnp.result_type(float))
    world, own = jax.eval_shape(draw, source, rate)
    wanted = _world(problem, world.logged is not None)
    _check("World", "world", world, **_shapes(wanted))
    if wanted.logged is not None:
        _check("World.logged", "world", world.logged, **_shapes(wanted.logged))
    if has_own_arrivals(source):
        kind = jnp.dtype(jnp.bool_ if most == 1 else jnp.int32)
        fine = getattr(own, "shape", None) == (problem.horizon,) and own.dtype == kind
        require(fine, f"arrives must return {kind}[{problem.horizon}], and it returns {_told(own)}")


def _shapes(tree: Any) -> dict[str, tuple[tuple[int, ...], Any]]:
    """Return the shapes and types of a named tuple's arrays."""
    there = {field: of for field, of in tree._asdict().items() if hasattr(of, "dtype")}
    return {field: (of.shape, of.dtype) for field, of in there.items()}


def check_recorders(recorders: Sequence[Recorder], policy: Policy, problem: Problem) -> None:
    """Check that recorders keep the shapes of their states, and read what they say they do.

    Args:
        recorders: to be checked together.
        policy: any, whose round they see.
        problem: the shapes.

    Raises:
        ValueError: naming the recorder, and what is allowed.
    """

    def one_round(world: World, round_: Array) -> tuple[Any, Any]:
        rounds = jnp.zeros(problem.horizon)
        arrives = rounds > 0 if problem.arrivals_a_round == 1 else rounds.astype(jnp.int32)
        rules, choice = None, rounds
        if problem.places > 1:
            rules, choice = Rules((), (), (), (), None), jnp.zeros((len(rounds), problem.places))
        instance = simulate.Instance(rng.run_key(0), world, arrives, choice, rules)
        carry = simulate.start(policy, problem, instance, problem.horizon, recording=recorders)
        after, _ = simulate.run_round(policy, problem, instance, carry, round_, recording=recorders)
        return carry.recorded, after.recorded

    before, after = jax.eval_shape(one_round, _world(problem), _whole(()))
    sizes: dict[str, int] = {}
    for one in recorders:
        if pytree.kind_of(before[one.name]) != pytree.kind_of(after[one.name]):
            raise ValueError(
                f"recorder {one.name} must keep its state's shapes and types in update"
            )
        shape = jax.eval_shape(one.read, after[one.name]).shape
        if len(shape) != len(one.dims):
            raise ValueError(
                f"recorder {one.name} must read an array over dims={list(one.dims)}, and reads one "
                f"of shape {list(shape)}"
            )
        for dim, size in zip(one.dims, shape, strict=True):
            if sizes.setdefault(dim, size) != size:
                raise ValueError(
                    f"recorder {one.name} reads {size} along {dim}, and another one {sizes[dim]}"
                )


def check_users(users: Users, problem: Problem) -> None:
    """Check the shapes and types of what a kind of users draws and says.

    Args:
        users: its leaves may be shapes alone.
        problem: the shapes.

    Raises:
        ContractError: naming the part, and what is allowed.
    """
    lead = (problem.horizon, problem.places)

    def draw(users: Users, attempts: Array) -> tuple[Any, Any]:
        drawn = users.draw(rng.run_key(0), problem)
        _check_lead(drawn, lead, "[T, c, ...], a number for each round and place")
        said = users.reacts(jax.tree.map(lambda leaf: leaf[0, 0], drawn), attempts)
        told = type(said).__name__
        require(isinstance(said, Reaction), f"reacts must return a Reaction, and it returns {told}")
        return users.bears(rng.run_key(0), problem), said

    borne, said = jax.eval_shape(draw, users, _whole(()))
    truth, whole = ((), jnp.bool_), ((), jnp.int32)
    _check("Reaction", "reacts", said, leaves=truth, pretends=truth, away=whole)
    _check_said("bears", borne, (problem.horizon, problem.arrivals_a_round), jnp.int32)


def check_service(service: Service, problem: Problem) -> None:
    """Check the shapes and types of what a kind of service draws and says.

    Args:
        service: its leaves may be shapes alone.
        problem: the shapes.

    Raises:
        ContractError: naming the part, and what is allowed.
    """

    def draw(service: Service, place: Array, prompt: Array, servers: Array) -> tuple[Any, ...]:
        drawn = service.draw(rng.run_key(0), problem)
        _check_lead(drawn, (problem.horizon,), "[T, ...], something for each round")
        mine = jax.tree.map(lambda leaf: leaf[0], drawn)
        return (
            service.available(mine), service.takes(mine, place, prompt, servers),
            service.hears(mine, place), service.prices(mine),
        )  # fmt: skip

    asked = _whole(()), _whole(()), _whole((problem.assortment_size,))
    available, takes, hears, prices = jax.eval_shape(draw, service, *asked)
    _check_said("available", available, (problem.num_servers,), jnp.bool_)
    _check_said("takes", takes, (), jnp.int32)
    _check_said("hears", hears, (), jnp.bool_)
    _check_said("prices", prices, (problem.num_servers,), jnp.result_type(float))
    lasting = takes is None or service.lasting is True
    require(lasting, "takes says how long attempts last, and needs lasting = True")


def _check_lead(drawn: Any, lead: tuple[int, ...], wanted: str) -> None:
    """Check the first axes of everything that was drawn."""
    for leaf in jax.tree.leaves(drawn):
        fine = getattr(leaf, "shape", ())[: len(lead)] == lead
        require(
            fine, f"draw must return arrays {wanted}, here {list(lead)}, and returns {_told(leaf)}"
        )


def _check_said(method: str, said: Any, shape: tuple[int, ...], dtype: Any) -> None:
    """Check what a method returns that may return None."""
    fine = said is None or (getattr(said, "shape", None) == shape and said.dtype == dtype)
    wanted = f"{jnp.dtype(dtype)}{list(shape)}"
    require(fine, f"{method} must return {wanted} or None, and it returns {_told(said)}")


_whole: Any = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.int32)
_truth: Any = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.bool_)


def _world(problem: Problem, logged: bool = False) -> World:
    """Return the shapes of a run's instance."""
    rows, most = problem.num_rows, problem.arrivals_a_round
    several = () if most == 1 else (most,)
    real: Any = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.result_type(float))
    return World(
        real(problem.contexts_shape), real((rows, problem.num_servers)),
        _whole((problem.horizon, *several)), _whole((rows,)),
        Logged(_truth((rows,)), _whole((rows,))) if logged else None,
        billed=Billed(*[real((rows, problem.num_servers))] * 2) if problem.billed else None,
    )  # fmt: skip


def _check(kind: str, method: str, made: Any, **wanted: tuple[tuple[int, ...], Any]) -> None:
    """Check the shapes and types of a named tuple's fields."""
    for field, (shape, dtype) in wanted.items():
        value = getattr(made, field)
        require(
            getattr(value, "shape", None) == shape and value.dtype == dtype,
            f"{kind}.{field} must be {jnp.dtype(dtype)}{list(shape)}, and {method} returns "
            f"{_told(value)}",
        )


def _told(value: Any) -> str:
    """Say what an array is."""
    shaped = hasattr(value, "shape")
    return f"{value.dtype}{list(value.shape)}" if shaped else type(value).__name__
