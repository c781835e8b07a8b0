"""Frozen dataclasses that are JAX pytrees.

A field is one of three things. A number or an array is a leaf: traced, batched by `vmap`, changed
without recompiling. A field declared with `option` is a leaf too: a user sets it to a string, and
in a program it is the index of that string, so policies that differ only in options share one
program and one batch. A field declared with `static` determines a shape or selects code: it is
hashed, never traced.
"""

import dataclasses
import functools
from collections.abc import Sequence
from types import UnionType
from typing import (
    Any,
    Literal,
    NamedTuple,
    TypeVar,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax.core.inputs import TableNames, is_number

T = TypeVar("T")
# The types in which a field of several numbers may be given.
Numbers = Array | np.ndarray | Sequence[float]


def static(**kwargs: Any) -> Any:
    """Declare a field that determines a shape or selects code: it is hashed, never traced."""
    return dataclasses.field(metadata={"static": True}, **kwargs)


def option(**kwargs: Any) -> Any:
    """Declare a field of a `Literal` type, whose leaf in the pytree is the chosen string's index.

    Programs read it with `option_index`, which accepts the string or the (traced) index.
    """
    return dataclasses.field(metadata={"option": True}, **kwargs)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(static, option))
def pytree(cls: type[T]) -> type[T]:
    """Turn a class into a frozen keyword-only dataclass and register it as a pytree.

    Fields declared with `static` belong to the tree's structure; every other field is a leaf (or a
    subtree), so that it can be traced, batched by `vmap` and changed without recompiling. If a
    field's type is `cqbjax.core.pytree.Numbers` (an array or a list of numbers), a list in it
    becomes an array before the class's `__post_init__`. In a class of this package,
    `check_options` validates the options and other fields of a `Literal` type.
    """
    check: Any = getattr(cls, "__post_init__", None)

    def post_init(tree: Any) -> None:
        convert_lists(tree, *numbers)
        if made.__module__.startswith("cqbjax."):
            check_options(tree)
        if check:
            check(tree)

    cls.__post_init__ = post_init  # type: ignore[attr-defined]
    made: Any = dataclasses.dataclass(frozen=True, kw_only=True)(cls)
    fields = dataclasses.fields(made)
    static_names = [field.name for field in fields if field.metadata.get("static")]
    names = [field.name for field in fields if field.name not in static_names]
    numbers = [one.name for one in fields if {*get_args(Numbers)} <= {*get_args(one.type)}]
    words = {field.name for field in fields if field.metadata.get("option")}

    literals = functools.partial(_literals, made)

    def values(tree: Any) -> list[Any]:
        return [
            option_index(literals()[name], getattr(tree, name), name)
            if name in words
            else getattr(tree, name)
            for name in names
        ]

    def flatten(tree: Any) -> tuple[list[Any], tuple[Any, ...]]:
        return values(tree), tuple(getattr(tree, name) for name in static_names)

    def flatten_with_keys(tree: Any) -> tuple[list[Any], tuple[Any, ...]]:
        keys = map(jax.tree_util.GetAttrKey, names)
        return list(zip(keys, values(tree), strict=True)), flatten(tree)[1]

    def unflatten(structure: tuple[Any, ...], children: Any) -> Any:
        # Without the constructor and its checks: JAX may put its own objects in place of leaves.
        tree = object.__new__(made)
        for name, value in zip((*static_names, *names), (*structure, *children), strict=True):
            object.__setattr__(tree, name, value)
        return tree

    jax.tree_util.register_pytree_with_keys(made, flatten_with_keys, unflatten, flatten)
    return made


@functools.cache
def _literals(cls: Any) -> dict[str, Any]:
    """Return the `Literal` type of each field of a class that has one, perhaps in a union."""
    literals = {}
    for name, kind in get_type_hints(cls).items():
        for part in (kind, *get_args(kind)):
            if get_origin(part) is Literal:
                literals[name] = part
    for one in dataclasses.fields(cls):
        if one.metadata.get("option") and one.name not in literals:
            text = f"{cls.__name__}.{one.name} is an option, so its type must be a Literal"
            raise ValueError(f"{text}, such as Literal['a', 'b']")
    return literals


def option_index(words: Any, value: Any, name: str = "option") -> np.int32 | Array:
    """Return the index of a string in its `Literal` type, from 0.

    Args:
        words: the `Literal`.
        value: one of its strings, or already the index, which may be traced.
        name: the field's name, for the error.

    Raises:
        ValueError: naming the field and the allowed strings.
    """
    if value is not None and not isinstance(value, str | int | float):
        return value  # the index: NumPy's, traced, or JAX's object in place of a leaf
    if value not in get_args(words):
        raise ValueError(f"{name}={value} must be one of {', '.join(get_args(words))}")
    return np.int32(get_args(words).index(value))


def as_arrays(tree: T) -> T:
    """Return a tree with arrays as leaves: numbers become floats, option indices stay int32."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, array_dtype(leaf)), tree)


def array_dtype(leaf: Any) -> Any:
    """Return the dtype of a leaf as an array: int32 for an option index, else float."""
    whole = getattr(leaf, "dtype", None) == jnp.int32
    return jnp.dtype(jnp.int32) if whole else jnp.result_type(float)


def convert_lists(tree: Any, *names: str) -> None:
    """Convert fields that were given as lists to arrays.

    A list would be a tree of numbers, each a separate argument of the program. An empty list
    becomes None if None is the field's default, so that a configuration can write [] for None.
    """
    defaults = {field.name: field.default for field in dataclasses.fields(tree)}
    for name in names:
        value = getattr(tree, name)
        if value is None or hasattr(value, "shape") or not hasattr(value, "__len__"):
            continue
        none = not len(value) and defaults[name] is None
        try:
            made = np.asarray(list(value), float)
        except (TypeError, ValueError):
            raise ValueError(f"{name}={value} must be a list of numbers") from None
        object.__setattr__(tree, name, None if none else made)


class Signature(NamedTuple):
    """Structure and shapes of a pytree; trees with equal signatures share a compiled program.

    Attributes:
        structure: the tree's structure, including its static fields.
        leaves: (shape, dtype) of each leaf.
    """

    structure: Any
    leaves: tuple[tuple[tuple[int, ...], Any], ...]

    def shapes(self, *batch: int) -> Any:
        """Return the tree with `ShapeDtypeStruct` leaves that have the leading axes `batch`."""
        leaves = [jax.ShapeDtypeStruct((*batch, *shape), dtype) for shape, dtype in self.leaves]
        return jax.tree.unflatten(self.structure, leaves)


def signature_of(tree: Any) -> Signature:
    """Return the signature of a tree whose leaves are numbers or arrays."""
    leaves, structure = jax.tree.flatten(tree)
    return Signature(structure, tuple((jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves))


def signature_as_arrays(tree: Any) -> Signature:
    """Return the signature of `as_arrays(tree)`, without creating the arrays.

    Raises:
        TypeError: a leaf is not a number.
    """
    leaves, structure = jax.tree.flatten(tree)
    for leaf in leaves:
        if not hasattr(leaf, "dtype") and not isinstance(leaf, int | float):
            jnp.asarray(leaf, float)  # raises TypeError if it is not a number
    return Signature(structure, tuple((np.shape(leaf), array_dtype(leaf)) for leaf in leaves))


def check_numbers(tree: Any) -> None:
    """Check that numeric fields hold numbers, also in nested objects of this package's classes.

    Raises:
        ValueError: naming the field.
    """
    cls: Any = type(tree)
    if not dataclasses.is_dataclass(tree) or not cls.__module__.startswith("cqbjax."):
        return
    for name, hint in get_type_hints(cls).items():
        parts = get_args(hint) if isinstance(hint, UnionType) else (hint,)
        value, kinds = getattr(tree, name), set(parts)
        for one in value if isinstance(value, tuple) else (value,):
            check_numbers(one)
        if value is None and type(None) in kinds:
            continue
        if TableNames in kinds and not isinstance(value, TableNames):
            raise ValueError(f"{name}={value} must be a table's names (core.inputs.TableNames)")
        several = any(get_origin(kind) is Sequence for kind in kinds)
        number_or_array = is_number(value) or np.ndim(value) and hasattr(value, "dtype")
        if kinds & {float, int} and not number_or_array:
            raise ValueError(f"{name}={value} must be a {'whole ' * (int in kinds)}number")
        if several and float not in kinds and not np.ndim(value):
            raise ValueError(f"{name}={value} must be a list of numbers")
        if name in _literals(cls) and isinstance(value, list | dict):
            raise ValueError(
                f"{name}={value} must be one of {', '.join(get_args(_literals(cls)[name]))}"
            )


def check_options(instance: Any) -> None:
    """Check that each field of a `Literal` type has one of the allowed strings.

    Raises:
        ValueError: naming the field and the allowed strings.
    """
    kind: Any = type(instance)
    for name, words in _literals(kind).items():
        option_index(words, getattr(instance, name), name)
