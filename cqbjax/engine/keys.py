"""What a sweep's numbers follow from, hashed: what is kept of it is found again by that name.

Any change, of policies, source, shapes, rates, seeds, records, versions or the code itself, gives
another name, and what was kept under the old one is not looked at.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cqbjax.core.code import digest
from cqbjax.core.files import arrays_digest, content_key
from cqbjax.engine.groups import Group

# Where the simulator begins.
ENGINE = "cqbjax.engine.sweep"


def key(*parts: Any) -> str:
    """Hash trees of arrays, dataclasses and plain values, with the code and how JAX is set up.

    Args:
        parts: what results follow from. The modules that define the classes found in them count
            too: a user's own policy, changed, is another one.

    Returns:
        A file name without ending.
    """
    return content_key(held(parts), code(*parts))


def of_group(group: Group) -> str:
    """Return the key of a group: of all that its runs follow from."""
    common = group.part
    names = [f"{member.part} {member.label}" for member in group.members]
    rates = [(part.rates, part.seeds) for part in group.parts]
    return key(
        names, common.capacity, group.policies, group.numbers, group.tables, common.problem,
        common.records.rounds, rates, [repr(one) for one in common.recorders],
        code(*common.recorders),
    )  # fmt: skip


def held(tree: Any) -> str:
    """Hash what a tree holds: its structure and its arrays.

    Raises:
        ValueError: it holds something else than arrays, numbers and words.
    """
    leaves, structure = jax.tree.flatten(tree)
    arrays = [np.asarray(leaf) for leaf in leaves]
    if any(array.dtype == object for array in arrays):
        raise ValueError(f"{type(tree).__name__} holds an object that is no array and no number")
    return content_key(str(structure), arrays_digest(arrays))


def code(*parts: Any) -> str:
    """Hash the code that simulates, and that of parts, and how JAX is set up.

    Args:
        parts: as in `core.code.digest`.
    """
    setup = (jax.__version__, jax.default_backend(), str(jnp.result_type(float)))
    return content_key(*setup, digest([ENGINE], *parts))
