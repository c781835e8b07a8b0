"""Checks of the contract of `core.types`: shapes and types by tracing, and values of draws."""

import functools
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
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

# A function's address in the text of a program.
ADDRESS = re.compile(" at 0x[0-9a-f]+")


def trace(function: Callable[..., Any], *args: Any) -> tuple[Any, Any]:
    """Return a function's program, to compare it with another trace, and the shapes it returns."""
    # A new function each time, because JAX caches the trace of a function.
    program, shapes = jax.make_jaxpr(lambda *a: function(*a), return_shape=True)(*args)
    consts = [to_numpy(one).tobytes() for one in program.consts]
    return (ADDRESS.sub("", str(program)), consts), shapes


def to_numpy(value: Any) -> np.ndarray:
    """Return an array, or the bits of a random key, as a NumPy array."""
    if isinstance(value, Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    return np.asarray(value)


def check_policy(policy: Policy, problem: Problem) -> None:
    """Check the shapes and types of a policy's action, and that `update` keeps those of the state.

    A round is traced twice: random numbers of NumPy or Python, or another hidden state, change the
    program.

    Args:
        policy: its leaves may be of type `ShapeDtypeStruct`.
        problem: the static settings.

    Raises:
        ContractError: naming the part, and what is allowed.
    """
    number = None if problem.channels == 1 else _int32(())
    arguments = _workload_shapes(problem), _int32(()), Feedback(_int32(()), _bool(()), number)

    def play_round(policy: Policy, workload: Workload, round_: Array, feedback: Any) -> Any:
        instance = simulate.Instance(rng.run_key(0), workload, jnp.zeros(0), jnp.zeros(0))
        carry = simulate.start(policy, problem, instance, problem.horizon)
        seen = simulate.observe(policy, problem, instance, carry, round_)
        action = policy.select(rng.run_key(0), carry.state, seen)
        require(
            isinstance(action, Action),
            f"select must return an Action, and it returns {type(action).__name__}",
        )
        return carry.state, action, policy.update(carry.state, seen, action, feedback)

    program, (before, action, after) = trace(play_round, policy, *arguments)
    servers = (problem.assortment_size,)
    _check_fields("Action", "select", action, slot=((), jnp.int32), servers=(servers, jnp.int32),
           explored=((), jnp.bool_))  # fmt: skip
    if read_needs(policy).smaller_assortments:
        _check_fields("Action", "select", action, offered=(servers, jnp.bool_))
    else:
        require(
            action.offered is None,
            "select must leave Action.offered out, or the policy's needs must "
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
    require(
        trace(play_round, policy, *arguments)[0] == program,
        "select and update must be pure, and the program of a round changes when it is traced "
        "again: keep no globals, and draw random numbers with cqbjax.rng from the key of select, "
        "not with numpy.random or random",
    )


def check_source(source: Source, problem: Problem) -> None:
    """Check the shapes and types of a source's workload, and of its arrivals if it draws them.

    Args:
        source: its leaves may be of type `ShapeDtypeStruct`.
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
        key, arrivals = rng.run_key(0), None
        workload = source.draw_workload(key, rate, problem)
        require(
            isinstance(workload, Workload),
            f"draw_workload must return a Workload, and it returns {type(workload).__name__}",
        )
        if draws_arrivals(source):
            arrivals = source.draw_arrivals(key, rate, problem.horizon)
        return workload, arrivals

    rate = jax.ShapeDtypeStruct((), jnp.result_type(float))
    workload, arrivals = jax.eval_shape(draw, source, rate)
    wanted = _workload_shapes(problem, workload.log is not None)
    parts: list[tuple[str, Any, Any]] = [("Workload", workload, wanted)]
    parts += [] if wanted.log is None else [("Workload.log", workload.log, wanted.log)]
    for name, part, shapes in parts:
        arrays = {key: leaf for key, leaf in shapes._asdict().items() if hasattr(leaf, "dtype")}
        wanted_fields = {key: (leaf.shape, leaf.dtype) for key, leaf in arrays.items()}
        _check_fields(name, "draw_workload", part, **wanted_fields)
    if draws_arrivals(source):
        dtype = jnp.dtype(jnp.bool_ if most == 1 else jnp.int32)
        _check_array("draw_arrivals must return", arrivals, (problem.horizon,), dtype)


def check_recorders(recorders: Sequence[Recorder], policy: Policy, problem: Problem) -> None:
    """Check that `update` keeps the shapes of recorders' states, and `read` matches `dims`.

    Args:
        recorders: the recorders; dimensions of one name must have the same size.
        policy: any policy, to trace a round.
        problem: the static settings.

    Raises:
        ValueError: naming the recorder, and what is allowed.
    """

    def play_round(workload: Workload, round_: Array) -> tuple[Any, Any]:
        rounds = jnp.zeros(problem.horizon)
        arrivals = rounds > 0 if problem.max_arrivals == 1 else rounds.astype(jnp.int32)
        dynamics, choice = None, rounds
        if problem.channels > 1:
            dynamics = Dynamics((), (), (), (), None)
            choice = jnp.zeros((problem.horizon, problem.channels))
        instance = simulate.Instance(rng.run_key(0), workload, arrivals, choice, dynamics)
        carry = simulate.start(policy, problem, instance, problem.horizon, recording=recorders)
        after, _ = simulate.run_round(policy, problem, instance, carry, round_, recording=recorders)
        return carry.recorded, after.recorded

    before, after = jax.eval_shape(play_round, _workload_shapes(problem), _int32(()))
    sizes: dict[str, int] = {}
    for recorder in recorders:
        name, dims = recorder.name, recorder.dims
        if pytree.signature_of(before[name]) != pytree.signature_of(after[name]):
            raise ValueError(f"recorder {name} must keep its state's shapes and types in update")
        shape = jax.eval_shape(recorder.read, after[name]).shape
        if len(shape) != len(dims):
            raise ValueError(
                f"recorder {name} must read an array over dims={list(dims)}, and reads one "
                f"of shape {list(shape)}"
            )
        for dim, size in zip(dims, shape, strict=True):
            if sizes.setdefault(dim, size) != size:
                raise ValueError(
                    f"recorder {name} reads {size} along {dim}, and another one {sizes[dim]}"
                )


def check_dynamics(model: UserModel | ServiceModel, problem: Problem) -> None:
    """Check the shapes and types of the draws and return values of a user or service model.

    Args:
        model: its leaves may be of type `ShapeDtypeStruct`.
        problem: the static settings.

    Raises:
        ContractError: naming the part, and what is allowed.
    """
    horizon, servers = problem.horizon, problem.num_servers
    lead: tuple[int, ...] = (horizon, problem.channels)
    axes = "[T, c, ...], for each round and channel"
    if not isinstance(model, UserModel):
        lead, axes = (horizon,), "[T, ...], for each round"

    def call(model: Any, number: Array, assortment: Array) -> Any:
        drawn = model.draw(rng.run_key(0), problem)
        for leaf in jax.tree.leaves(drawn):
            require(
                getattr(leaf, "shape", ())[: len(lead)] == lead,
                f"draw must return arrays {axes}, here {list(lead)}, and returns "
                f"{_describe_array(leaf)}",
            )
        first = jax.tree.map(lambda leaf: leaf[(0,) * len(lead)], drawn)
        if not isinstance(model, UserModel):
            return (
                model.available(first), model.service_time(first, number, number, assortment),
                model.feedback_arrives(first, number), model.prices(first),
            )  # fmt: skip
        reaction = model.react(first, number)
        require(
            isinstance(reaction, Reaction),
            f"react must return a Reaction, and it returns {type(reaction).__name__}",
        )
        return reaction, model.draw_patience(rng.run_key(0), problem)

    returned = jax.eval_shape(call, model, _int32(()), _int32((problem.assortment_size,)))
    wanted: dict[str, tuple[tuple[int, ...], Any]]
    if isinstance(model, UserModel):
        reaction, *returned = returned
        flag, rounds = ((), jnp.bool_), ((), jnp.int32)
        _check_fields("Reaction", "react", reaction, abandons=flag, looks_satisfied=flag,
            return_delay=rounds)  # fmt: skip
        wanted = {"draw_patience": ((horizon, problem.max_arrivals), jnp.int32)}
    else:
        wanted = {
            "available": ((servers,), jnp.bool_), "service_time": ((), jnp.int32),
            "feedback_arrives": ((), jnp.bool_), "prices": ((servers,), jnp.result_type(float)),
        }  # fmt: skip
        require(
            returned[1] is None or model.multi_round is True,
            "a model with a method service_time needs multi_round = True",
        )
    for (method, (shape, dtype)), value in zip(wanted.items(), returned, strict=True):
        if value is not None:
            _check_array(f"{method} must return", value, shape, dtype, allowed=" or None")


_int32: Any = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.int32)
_bool: Any = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.bool_)


def _workload_shapes(problem: Problem, logged: bool = False) -> Workload:
    """Return the shapes of a workload."""
    rows = problem.num_rows
    several = () if problem.max_arrivals == 1 else (problem.max_arrivals,)
    real: Any = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.result_type(float))
    return Workload(
        real(problem.contexts_shape), real((rows, problem.num_servers)),
        _int32((problem.horizon, *several)), _int32((rows,)),
        LoggedOutcomes(_bool((rows,)), _int32((rows,))) if logged else None,
        answer_costs=(
            AnswerCosts(*[real((rows, problem.num_servers))] * 2) if problem.has_costs else None
        ),
    )  # fmt: skip


def _check_fields(name: str, method: str, part: Any, **wanted: tuple[tuple[int, ...], Any]) -> None:
    """Check the shapes and types of a named tuple's fields."""
    for field, (shape, dtype) in wanted.items():
        returns = f"{method} returns"
        _check_array(f"{name}.{field} must be", getattr(part, field), shape, dtype, returns)


def _check_array(
    must: str, value: Any, shape: tuple[int, ...], dtype: Any, returns: str = "it returns",
    allowed: str = "",
) -> None:  # fmt: skip
    """Check the shape and type of an array; the error begins with `must`."""
    require(
        getattr(value, "shape", None) == shape and value.dtype == dtype,
        f"{must} {jnp.dtype(dtype)}{list(shape)}{allowed}, and {returns} {_describe_array(value)}",
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
    "react must return a return_delay of at least 1 round",
    "service_time must return at least 1 round",
    "prices must be finite and not negative",
)
# Numbers of attempts for which `react` is checked.
PROBED_ATTEMPTS = (1, 2, 3, 10, 100)


@functools.partial(jax.jit, static_argnums=0)
def instance_faults(problem: Problem, workload: Workload, arrivals: Array) -> Array:
    """Return the first fault of each instance of a batch: [S], 0 or a number of `INSTANCE_FAULTS`.

    Args:
        problem: shapes.
        workload: leaves [S, ...].
        arrivals: [S, T] A(t), or numbers of arrivals.
    """

    def find_fault(workload: Workload, arrivals: Array) -> Array:
        prompts, most = workload.prompts, problem.max_arrivals
        rows = workload.arrival_rows.reshape(-1, most)
        next_rows = jnp.zeros(1, int) if workload.log is None else workload.log.next
        arrive = jnp.arange(most) < arrivals[:, None]
        return _first_fault(
            ~jnp.all(jnp.isfinite(workload.contexts)),
            ~jnp.all(jnp.isfinite(workload.utilities)),
            jnp.any(arrive & ((rows < 0) | (rows >= problem.num_rows))),
            jnp.any((prompts < 0) | (prompts >= (problem.num_prompts or problem.num_rows))),
            jnp.any((arrivals < 0) | (arrivals > most)),
            jnp.any((next_rows < 0) | (next_rows >= problem.num_rows)),
        )

    return jax.vmap(find_fault)(workload, arrivals)


@functools.partial(jax.jit, static_argnums=0)
def model_faults(problem: Problem, dynamics: Dynamics, arrivals: Array) -> Array:
    """Return the first fault of each user model and then each service model of a batch: [S, n].

    Args:
        problem: shapes.
        dynamics: leaves [S, ...].
        arrivals: [S, T] A(t), which have the batch's axis even if the models drew nothing.

    Returns:
        0 or a number of `MODEL_FAULTS`.
    """

    def find_faults(dynamics: Dynamics, _: Array) -> Array:
        users = zip(dynamics.users, dynamics.user_draws, strict=True)
        service = zip(dynamics.service, dynamics.service_draws, strict=True)
        return jnp.stack([
            *(_user_fault(model, drawn, dynamics.patience) for model, drawn in users),
            *(_service_fault(problem, model, drawn) for model, drawn in service),
        ])  # fmt: skip

    return jax.vmap(find_faults)(dynamics, arrivals)


def _user_fault(users: UserModel, drawn: Any, patience: Array | None) -> Array:
    """Return the fault of a user model in one run: []."""

    def return_delay(drawn: Any) -> Array:
        reactions = [users.react(drawn, jnp.int32(n)) for n in PROBED_ATTEMPTS]
        return jnp.stack([reaction.return_delay for reaction in reactions])

    short_patience = jnp.bool_(False)
    if patience is not None and type(users).draw_patience is not UserModel.draw_patience:
        short_patience = jnp.any(patience < 1)
    short_delay = jnp.any(_map_draws(return_delay, drawn, 2) < 1)
    return _first_fault(_has_nan(drawn), short_patience, short_delay)


def _service_fault(problem: Problem, service: ServiceModel, drawn: Any) -> Array:
    """Return the fault of a service model in one run: []."""
    servers = jnp.arange(problem.num_servers, dtype=jnp.int32)
    assortments = servers[: problem.assortment_size], servers[-problem.assortment_size :]
    prompts = map(jnp.int32, (0, (problem.num_prompts or problem.num_rows) - 1))
    channels = map(jnp.int32, range(problem.channels))
    arguments = list(itertools.product(channels, prompts, assortments))

    def service_time(drawn: Any) -> Array:
        times = [service.service_time(drawn, *args) for args in arguments]
        return jnp.stack([jnp.int32(1) if rounds is None else rounds for rounds in times])

    def prices(drawn: Any) -> Array:
        factors = service.prices(drawn)
        return jnp.ones(1) if factors is None else factors

    factors, valid = _map_draws(prices, drawn, 1), jnp.bool_(False)
    wrong_prices = ~jnp.all(jnp.isfinite(factors) & (factors >= 0))
    short_time = jnp.any(_map_draws(service_time, drawn, 1) < 1)
    return _first_fault(_has_nan(drawn), valid, valid, short_time, wrong_prices)


def _map_draws(function: Any, drawn: Any, axes: int) -> Array:
    """Map a function over the leading axes of drawn arrays."""
    for _ in range(axes if jax.tree.leaves(drawn) else 0):
        function = jax.vmap(function)
    return function(drawn)


def _has_nan(drawn: Any) -> Array:
    """Return whether any draw is NaN: [] bool."""
    reals = [leaf for leaf in jax.tree.leaves(drawn) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return jnp.any(jnp.stack([jnp.any(jnp.isnan(leaf)) for leaf in reals] or [jnp.bool_(False)]))


def _first_fault(*faults: Array) -> Array:
    """Return the number of the first fault, from 1; 0 without a fault: [] int32."""
    return jnp.select(faults, range(1, len(faults) + 1), 0)


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
    dynamics, user_defined = instance.dynamics, find_third_party(base_source(source))
    if user_defined is not None:
        faults = instance_faults(problem, instance.workload, instance.arrivals)
        yield f"source {type(user_defined).__name__}", INSTANCE_FAULTS, np.asarray(faults)
    if dynamics is None or not any(map(is_third_party, (*dynamics.users, *dynamics.service))):
        return
    faults = np.asarray(model_faults(problem, dynamics, instance.arrivals))
    for number, model in enumerate((*dynamics.users, *dynamics.service)):
        group = "users" if number < len(dynamics.users) else "service"
        if is_third_party(model):
            yield f"{group} {type(model).__name__}", MODEL_FAULTS, faults[:, number]
