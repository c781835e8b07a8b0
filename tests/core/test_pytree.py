"""Frozen pytree dataclasses: what is static, what is a leaf, and words that are numbers."""

import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cqbjax.core import pytree
from cqbjax.core.pytree import Numbers, check_options, option, signature_of, static

Rule = Literal["first", "last"]


@pytree.pytree
class Mine:
    """One of each kind of field."""

    scale: Any = 1.0
    rule: Rule | Any = option(default="first")
    size: int = static(default=3)
    table: Numbers | None = None


def test_array_types_are_known_without_allocation():
    for tree in (Mine(scale=2, table=[1, 2]), Mine(scale=np.float64(1)), Mine(scale=True),
                 Mine(scale=np.ones((2, 3), np.int32)), Mine(scale=jnp.ones(3))):  # fmt: skip
        assert pytree.signature_as_arrays(tree) == signature_of(pytree.as_arrays(tree))
    with pytest.raises(TypeError):
        pytree.signature_as_arrays(Mine(scale=object()))


def test_a_tree_is_flattened_and_unflattened_field_by_field():
    mine = Mine(scale=2.5, rule="last", size=7, table=[1, 2])
    leaves, structure = jax.tree.flatten(mine)
    assert leaves[:2] == [2.5, 1] and leaves[1].dtype == np.int32
    assert leaves[2].tolist() == [1.0, 2.0] and leaves[2].dtype == float
    again = jax.tree.unflatten(structure, leaves)
    assert (again.scale, again.rule, again.size) == (2.5, 1, 7) and again.table is mine.table
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(mine)]
    assert paths == [".scale", ".rule", ".table"]
    assert structure != jax.tree.structure(dataclasses.replace(mine, size=8))
    assert structure == jax.tree.structure(dataclasses.replace(mine, rule="first", scale=0))
    traced = jax.jit(lambda tree: tree.scale * tree.size + tree.rule)(mine)
    assert traced == 2.5 * 7 + 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        mine.scale = 3.0
    with pytest.raises(TypeError):
        Mine(1.0)


def test_option_fields_without_enumeration_are_reported():
    @pytree.pytree
    class OptionWithoutLiteral:
        rule: Any = option(default="first")

    with pytest.raises(
        ValueError, match="OptionWithoutLiteral.rule is an option, so its type must be a Literal"
    ):
        jax.tree.leaves(OptionWithoutLiteral())


def test_options_map_to_their_index_and_unknown_words_raise():
    assert [pytree.option_index(Rule, one) for one in ("first", "last")] == [0, 1]
    for already in (np.int32(1), jnp.int32(1), jax.ShapeDtypeStruct((), jnp.int32)):
        assert pytree.option_index(Rule, already) is already
    for wrong in ("middle", None, 1, 0.0, True):
        with pytest.raises(ValueError, match=f"rule={wrong} must be one of first, last"):
            pytree.option_index(Rule, wrong, "rule")
    check_options(Mine(rule="last"))
    with pytest.raises(ValueError, match="rule=middle must be one of first, last"):
        check_options(Mine(rule="middle"))


def test_numbers_become_floats_and_option_indices_stay_integers():
    mine = pytree.as_arrays(Mine(scale=2, rule="last", table=np.arange(3)))
    assert mine.scale.dtype == jnp.float32 and mine.rule.dtype == jnp.int32
    assert mine.table.dtype == jnp.float32 and mine.table.tolist() == [0, 1, 2]
    assert pytree.as_arrays(jnp.arange(2, dtype=jnp.int32)).dtype == jnp.int32


def test_only_lists_are_converted_to_arrays():
    table = jnp.arange(3.0)
    assert Mine(table=table).table is table and Mine().table is None and Mine(table=2.0).table == 2
    assert isinstance(Mine(table=(1, 2)).table, np.ndarray)


def test_equal_signatures_differ_only_in_numbers():
    one, other = Mine(scale=1.0), Mine(scale=2.0, rule="last")
    assert signature_of(one) == signature_of(other) and hash(signature_of(one)) == hash(
        signature_of(other)
    )
    for another in (Mine(size=4), Mine(scale=np.ones(2)), Mine(scale=1), Mine(table=[1])):
        assert signature_of(one) != signature_of(another)
    shapes = signature_of(Mine(scale=np.ones(2, np.float32))).shapes(5, 4)
    assert shapes.scale.shape == (5, 4, 2) and shapes.rule.dtype == np.int32 and shapes.size == 3
