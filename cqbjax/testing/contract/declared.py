"""What a policy declares: its fields, and that it is pure."""

import dataclasses
from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax.core import simulate
from cqbjax.core.contract import ContractError, check_class, require
from cqbjax.core.types import Policy, Problem


def check_fields(policy: Policy) -> None:
    """Check that floats are leaves, that the rest is static and hashable, and `needs`.

    Raises:
        ContractError: naming the field.
    """
    name = type(policy).__name__
    frozen = dataclasses.is_dataclass(policy) and type(policy).__dataclass_params__.frozen
    require(frozen, f"{name} must be a frozen dataclass: decorate it with core.pytree.pytree")
    check_class(policy)
    leaves, _ = jax.tree_util.tree_flatten_with_path(policy)
    for path, leaf in leaves:
        field = name + jax.tree_util.keystr(path)
        require(
            # A NumPy integer is the number of a word that is data of a run.
            isinstance(leaf, np.int32) or jnp.issubdtype(jnp.result_type(leaf), jnp.floating)
            if isinstance(leaf, bool | int | float | np.ndarray | np.generic | Array)
            else False,
            f"{field} is {leaf!r}: a leaf must be a float (write 1.0 for 1), and what fixes a "
            "shape or chooses code must be declared with cqbjax.core.pytree.static",
        )
    for part in dataclasses.fields(cast(Any, policy)):
        if part.metadata.get("static"):
            try:
                hash(getattr(policy, part.name))
            except TypeError as error:
                raise ContractError(
                    f"{name}.{part.name} is static and must be hashable: {error}"
                ) from error


def check_pure(policy: Policy, problem: Problem, instance: simulate.Instance) -> None:
    """Check that tracing a round twice gives the same program: no hidden state, no other random.

    Raises:
        ContractError: if the programs differ.
    """

    def one_round(policy: Policy, round_: Array) -> Any:
        carry = simulate.start(policy, problem, instance, problem.horizon)
        return simulate.run_round(policy, problem, instance, carry, round_)

    require(
        traced_alike(one_round, policy, 1),
        "select and update must be pure: tracing them twice gives different programs",
    )


def traced_alike(say: Callable[..., Any], *asked: Any) -> bool:
    """Tell whether tracing a function twice gives the same program, of the same numbers."""
    # By a function of its own each time: JAX remembers what it has traced.
    first, second = (jax.make_jaxpr(lambda *a: say(*a))(*asked) for _ in range(2))
    return str(first) == str(second) and all(
        np.array_equal(numbers(a), numbers(b))
        for a, b in zip(first.consts, second.consts, strict=True)
    )


def numbers(value: Any) -> np.ndarray:
    """Return an array's numbers, a key's bits included."""
    if isinstance(value, Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    return np.asarray(value)
