"""Frozen dataclasses that are JAX pytrees: floats and arrays are leaves, shapes are static."""

import dataclasses
from typing import Any, Literal, TypeVar, dataclass_transform, get_args, get_origin, get_type_hints

import jax

T = TypeVar("T")


def static(**kwargs: Any) -> Any:
    """Declare a field that fixes a shape or chooses code: it is hashed, never traced."""
    return dataclasses.field(metadata={"static": True}, **kwargs)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(static,))
def pytree(cls: type[T]) -> type[T]:
    """Turn a class into a frozen keyword-only dataclass and register it as a pytree.

    Fields declared with `static` belong to the tree's structure; every other field is a leaf (or a
    subtree), so that it can be traced, batched by `vmap` and changed without recompiling.
    """
    return jax.tree_util.register_dataclass(dataclasses.dataclass(frozen=True, kw_only=True)(cls))


def check_words(instance: Any) -> None:
    """Refuse a field that is none of the words of its `Literal` type.

    Raises:
        ValueError: naming the field and the words.
    """
    for name, kind in get_type_hints(type(instance)).items():
        value = getattr(instance, name)
        if get_origin(kind) is Literal and value not in get_args(kind):
            raise ValueError(f"{name}={value} must be one of {', '.join(get_args(kind))}")
