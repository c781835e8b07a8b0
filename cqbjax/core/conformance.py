"""Checks of the contract of `core.types`: shapes and types by tracing, and values of draws."""

import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax.core import pytree, rng, simulate
from cqbjax.core.contract import find_third_party, is_third_party, require
from cqbjax.core.instances import Instance
from cqbjax.core.recorders import Recorder
from cqbjax.core.scenario import Dynamics, Reaction, ServiceModel, UserModel, base_source
from cqbjax.core.types import (
    Action,
    AnswerCosts,
    Feedback,
    LoggedOutcomes,
    Policy,
    Problem,
    Source,
    Workload,
    draws_arrivals,
    read_needs,
)


def check_policy(policy: Policy, problem: Problem) -> None:
    """Check the shapes and types of a policy's action, and that `update` keeps those of the state.

    Args:
        policy: its leaves may be `ShapeDtypeStruct`s.
        problem: the static settings.

    Raises:
        ContractError: naming the part, and what is allowed.
    """

    def one_round(policy: Policy, world: Workload, round_: Array, told: Any) -> Any:
        instance = simulate.Instance(rng.run_key(0), world, jnp.zeros(0), jnp.zeros(0))
        carry = simulate.start(policy, problem, instance, problem.horizon)
        seen = simulate.observe(policy, problem, instance, carry, round_)
        action = policy.select(rng.run_key(0), carry.state, seen)
        require(
            isinstance(action, Action),
            f"select must return an Action, and it returns {type(action).__name__}",
        )
        return carry.state, action, policy.update(carry.state, seen, action, told)

    number = None if problem.channels == 1 else _int32(())
    told = Feedback(_int32(()), _bool(()), number)
    before, action, after = jax.eval_shape(
        one_round, policy, _workload_shapes(problem), _int32(()), told
    )
    servers = (problem.assortment_size,)
    _check_fields("Action", "select", action, slot=((), jnp.int32), servers=(servers, jnp.int32),
           explored=((), jnp.bool_))  # fmt: skip
    if read_needs(policy).smaller_assortments:
        _check_fields("Action", "select", action, shown=(servers, jnp.bool_))
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
            f"{_describe_array(old)} to {_describe_array(new)}",
        )


def check_source(source: Source, problem: Problem) -> None:
    """Check the shapes and types of a source's workload, and of its arrivals if it draws them.

    Args:
        source: its leaves may be `ShapeDtypeStruct`s.
        problem: from `source.problem`.

    Raises:
        ContractError: naming the part, and what is allowed.
    """
    most = problem.max_arrivals
    require(
        most == 1 or (most > 1 and draws_arrivals(source)),
        f"max_arrivals={most} must be 1, or more with a method `draw_arrivals`",
    )

    def draw(source: Source, rate: Array) -> tuple[Workload, Any]:
        key, own = rng.run_key(0), None
        world = source.draw_workload(key, rate, problem)
        require(
            isinstance(world, Workload),
            f"draw_workload must return a Workload, and it returns {type(world).__name__}",
        )
        if draws_arrivals(source):
            own = source.draw_arrivals(key, rate, problem.horizon)
        return world, own

    rate = jax.ShapeDtypeStruct((), jnp.result_type(float))
    world, own = jax.eval_shape(draw, source, rate)
    wanted = _workload_shapes(problem, world.log is not None)
    _check_fields("Workload", "draw_workload", world, **_shapes(wanted))
    if wanted.log is not None:
        _check_fields("Workload.log", "draw_workload", world.log, **_shapes(wanted.log))
    if draws_arrivals(source):
        kind = jnp.dtype(jnp.bool_ if most == 1 else jnp.int32)
        fine = getattr(own, "shape", None) == (problem.horizon,) and own.dtype == kind
        require(
            fine,
            f"draw_arrivals must return {kind}[{problem.horizon}], and it returns "
            f"{_describe_array(own)}",
        )


def _shapes(tree: Any) -> dict[str, tuple[tuple[int, ...], Any]]:
    """Return the shapes and types of a named tuple's arrays."""
    there = {field: of for field, of in tree._asdict().items() if hasattr(of, "dtype")}
    return {field: (of.shape, of.dtype) for field, of in there.items()}


def check_recorders(recorders: Sequence[Recorder], policy: Policy, problem: Problem) -> None:
    """Check that `update` keeps the shapes of recorders' states, and `read` matches `dims`.

    Args:
        recorders: the recorders; dimensions of one name must have the same size.
        policy: any policy, to trace a round.
        problem: the static settings.

    Raises:
        ValueError: naming the recorder, and what is allowed.
    """

    def one_round(world: Workload, round_: Array) -> tuple[Any, Any]:
        rounds = jnp.zeros(problem.horizon)
        arrives = rounds > 0 if problem.max_arrivals == 1 else rounds.astype(jnp.int32)
        rules, choice = None, rounds
        if problem.channels > 1:
            rules, choice = (
                Dynamics((), (), (), (), None),
                jnp.zeros((len(rounds), problem.channels)),
            )
        instance = simulate.Instance(rng.run_key(0), world, arrives, choice, rules)
        carry = simulate.start(policy, problem, instance, problem.horizon, recording=recorders)
        after, _ = simulate.run_round(policy, problem, instance, carry, round_, recording=recorders)
        return carry.recorded, after.recorded

    before, after = jax.eval_shape(one_round, _workload_shapes(problem), _int32(()))
    sizes: dict[str, int] = {}
    for one in recorders:
        if pytree.signature_of(before[one.name]) != pytree.signature_of(after[one.name]):
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


def check_users(users: UserModel, problem: Problem) -> None:
    """Check the shapes and types of a user model's draws and return values.

    Args:
        users: its leaves may be `ShapeDtypeStruct`s.
        problem: the static settings.

    Raises:
        ContractError: naming the part, and what is allowed.
    """
    lead = (problem.horizon, problem.channels)

    def draw(users: UserModel, attempts: Array) -> tuple[Any, Any]:
        drawn = users.draw(rng.run_key(0), problem)
        _check_leading_axes(drawn, lead, "[T, c, ...], a number for each round and place")
        said = users.react(jax.tree.map(lambda leaf: leaf[0, 0], drawn), attempts)
        told = type(said).__name__
        require(isinstance(said, Reaction), f"react must return a Reaction, and it returns {told}")
        return users.draw_patience(rng.run_key(0), problem), said

    borne, said = jax.eval_shape(draw, users, _int32(()))
    truth, whole = ((), jnp.bool_), ((), jnp.int32)
    _check_fields("Reaction", "react", said, leaves=truth, pretends=truth, away=whole)
    _check_optional("draw_patience", borne, (problem.horizon, problem.max_arrivals), jnp.int32)


def check_service(service: ServiceModel, problem: Problem) -> None:
    """Check the shapes and types of a service model's draws and return values.

    Args:
        service: its leaves may be `ShapeDtypeStruct`s.
        problem: the static settings.

    Raises:
        ContractError: naming the part, and what is allowed.
    """

    def draw(service: ServiceModel, place: Array, prompt: Array, servers: Array) -> tuple[Any, ...]:
        drawn = service.draw(rng.run_key(0), problem)
        _check_leading_axes(drawn, (problem.horizon,), "[T, ...], something for each round")
        mine = jax.tree.map(lambda leaf: leaf[0], drawn)
        return (
            service.available(mine), service.service_time(mine, place, prompt, servers),
            service.feedback_arrives(mine, place), service.prices(mine),
        )  # fmt: skip

    asked = _int32(()), _int32(()), _int32((problem.assortment_size,))
    available, takes, hears, prices = jax.eval_shape(draw, service, *asked)
    _check_optional("available", available, (problem.num_servers,), jnp.bool_)
    _check_optional("service_time", takes, (), jnp.int32)
    _check_optional("feedback_arrives", hears, (), jnp.bool_)
    _check_optional("prices", prices, (problem.num_servers,), jnp.result_type(float))
    lasting = takes is None or service.lasting is True
    require(lasting, "service_time says how long attempts last, and needs lasting = True")


def _check_leading_axes(drawn: Any, lead: tuple[int, ...], wanted: str) -> None:
    """Check the leading axes of all draws."""
    for leaf in jax.tree.leaves(drawn):
        fine = getattr(leaf, "shape", ())[: len(lead)] == lead
        require(
            fine,
            f"draw must return arrays {wanted}, here {list(lead)}, and returns "
            f"{_describe_array(leaf)}",
        )


def _check_optional(method: str, said: Any, shape: tuple[int, ...], dtype: Any) -> None:
    """Check the shape and type of a return value that may be None."""
    fine = said is None or (getattr(said, "shape", None) == shape and said.dtype == dtype)
    wanted = f"{jnp.dtype(dtype)}{list(shape)}"
    require(fine, f"{method} must return {wanted} or None, and it returns {_describe_array(said)}")


_int32: Any = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.int32)
_bool: Any = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.bool_)


def _workload_shapes(problem: Problem, logged: bool = False) -> Workload:
    """Return the shapes and types of a run's workload."""
    rows, most = problem.num_rows, problem.max_arrivals
    several = () if most == 1 else (most,)
    real: Any = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.result_type(float))
    return Workload(
        real(problem.contexts_shape), real((rows, problem.num_servers)),
        _int32((problem.horizon, *several)), _int32((rows,)),
        LoggedOutcomes(_bool((rows,)), _int32((rows,))) if logged else None,
        answer_costs=(
            AnswerCosts(*[real((rows, problem.num_servers))] * 2) if problem.has_costs else None
        ),
    )  # fmt: skip


def _check_fields(kind: str, method: str, made: Any, **wanted: tuple[tuple[int, ...], Any]) -> None:
    """Check the shapes and types of a named tuple's fields."""
    for field, (shape, dtype) in wanted.items():
        value = getattr(made, field)
        require(
            getattr(value, "shape", None) == shape and value.dtype == dtype,
            f"{kind}.{field} must be {jnp.dtype(dtype)}{list(shape)}, and {method} returns "
            f"{_describe_array(value)}",
        )


def _describe_array(value: Any) -> str:
    """Return the dtype and shape of an array as text, or the name of another type."""
    shaped = hasattr(value, "shape")
    return f"{value.dtype}{list(value.shape)}" if shaped else type(value).__name__


# Conditions on an instance, in the order of `instance_faults`.
INSTANCE_FAULTS = (
    "contexts must be finite numbers",
    "utilities must be finite numbers",
    "arrival_rows must be rows of the contexts in every round with an arrival",
    "prompts must be numbers of the dataset's prompts, or of the rows without one",
    "draw_arrivals must lie in 0 .. max_arrivals",
    "log.next must be rows of the contexts",
)
# Conditions on the draws and return values of models, in the order of `model_faults`.
MODEL_FAULTS = (
    "draw must return numbers, and some are NaN",
    "draw_patience must return at least 1 round",
    "react must return away of at least 1 round",
    "service_time must return at least 1 round",
    "prices must be finite and not negative",
)
# Numbers of attempts for which `react` is checked.
PROBED_ATTEMPTS = (1, 2, 3, 10, 100)


@functools.partial(jax.jit, static_argnums=0)
def instance_faults(problem: Problem, world: Workload, arrives: Array) -> Array:
    """Return the fault of each instance: [S], 0 or the position in `INSTANCE_FAULTS` from 1.

    Args:
        problem: the static settings.
        world: workloads, leaves [S, ...].
        arrives: [S, T] A(t), or the number of arrivals.
    """

    def one(world: Workload, arrives: Array) -> Array:
        prompts, most = world.prompts, problem.max_arrivals
        rows = world.arrival_rows.reshape(-1, most)
        following = jnp.zeros(1, int) if world.log is None else world.log.next
        coming = jnp.arange(most) < arrives[:, None]
        return _first_fault(
            ~jnp.all(jnp.isfinite(world.contexts)),
            ~jnp.all(jnp.isfinite(world.utilities)),
            jnp.any(coming & ((rows < 0) | (rows >= problem.num_rows))),
            jnp.any((prompts < 0) | (prompts >= (problem.num_prompts or problem.num_rows))),
            jnp.any((arrives < 0) | (arrives > most)),
            jnp.any((following < 0) | (following >= problem.num_rows)),
        )

    return jax.vmap(one)(world, arrives)


@functools.partial(jax.jit, static_argnums=0)
def model_faults(problem: Problem, rules: Dynamics, arrives: Array) -> Array:
    """Return the faults of each user model, then of each service model: [S, n].

    A fault is 0 or the position in `MODEL_FAULTS` from 1.

    Args:
        problem: the static settings.
        rules: models and draws, leaves [S, ...].
        arrives: [S, T] A(t).
    """

    def one(rules: Dynamics, _: Array) -> Array:
        users = zip(rules.users, rules.user_draws, strict=True)
        service = zip(rules.service, rules.service_draws, strict=True)
        return jnp.stack([
            *(_user_fault(kind, drawn, rules.patience) for kind, drawn in users),
            *(_service_fault(problem, kind, drawn) for kind, drawn in service),
        ])  # fmt: skip

    return jax.vmap(one)(rules, arrives)


def _user_fault(users: UserModel, drawn: Any, patience: Array | None) -> Array:
    """Return the fault of a user model in one run: []."""

    def away(mine: Any) -> Array:
        return jnp.stack([users.react(mine, jnp.int32(n)).away for n in PROBED_ATTEMPTS])

    hasty = jnp.bool_(False)
    if patience is not None and type(users).draw_patience is not UserModel.draw_patience:
        hasty = jnp.any(patience < 1)
    return _first_fault(_has_nan(drawn), hasty, jnp.any(_map_draws(away, drawn, 2) < 1))


def _service_fault(problem: Problem, service: ServiceModel, drawn: Any) -> Array:
    """Return the fault of a service model in one run: []."""
    servers = jnp.arange(problem.num_servers, dtype=jnp.int32)
    some = servers[: problem.assortment_size], servers[-problem.assortment_size :]
    prompts = (0, (problem.num_prompts or problem.num_rows) - 1)
    channels = range(problem.channels)

    def service_time(mine: Any) -> Array:
        asked = itertools.product(map(jnp.int32, channels), map(jnp.int32, prompts), some)
        said = [service.service_time(mine, *one) for one in asked]
        return jnp.stack([jnp.int32(1) if rounds is None else rounds for rounds in said])

    def prices(mine: Any) -> Array:
        said = service.prices(mine)
        return jnp.ones(1) if said is None else said

    factors, fine = _map_draws(prices, drawn, 1), jnp.bool_(False)
    wrong = ~jnp.all(jnp.isfinite(factors) & (factors >= 0))
    return _first_fault(
        _has_nan(drawn), fine, fine, jnp.any(_map_draws(service_time, drawn, 1) < 1), wrong
    )


def _map_draws(say: Any, drawn: Any, axes: int) -> Array:
    """Map a function over the first `axes` axes of all draws."""
    for _ in range(axes if jax.tree.leaves(drawn) else 0):
        say = jax.vmap(say)
    said: Array = say(drawn)
    return said


def _has_nan(drawn: Any) -> Array:
    """Return whether any draw is NaN: [] bool."""
    reals = [leaf for leaf in jax.tree.leaves(drawn) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return jnp.any(jnp.stack([jnp.any(jnp.isnan(leaf)) for leaf in reals] or [jnp.bool_(False)]))


def _first_fault(*wrong: Array) -> Array:
    """Return the position of the first True, from 1, or 0 without one: []."""
    return jnp.select(wrong, range(1, len(wrong) + 1), 0)


def find_faults(
    source: Any, problem: Problem, instance: Instance
) -> Iterator[tuple[str, tuple[str, ...], np.ndarray]]:
    """Check the draws of third-party sources and models in a batch of runs.

    Args:
        source: the source of the runs.
        problem: the static settings.
        instance: leaves [S, ...].

    Yields:
        For each third-party part: its name, the possible faults as sentences, and for each run 0 or
        the position of its fault from 1: [S].
    """
    rules, own = instance.dynamics, find_third_party(base_source(source))
    if own is not None:
        faults = instance_faults(problem, instance.workload, instance.arrivals)
        yield f"source {type(own).__name__}", INSTANCE_FAULTS, np.asarray(faults)
    if rules is None or not any(map(is_third_party, (*rules.users, *rules.service))):
        return
    wrong = np.asarray(model_faults(problem, rules, instance.arrivals))
    for place, kind in enumerate((*rules.users, *rules.service)):
        group = "users" if place < len(rules.users) else "service"
        if is_third_party(kind):
            yield f"{group} {type(kind).__name__}", MODEL_FAULTS, wrong[:, place]
