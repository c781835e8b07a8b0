"""What an interrupted sweep had finished, so that the same sweep goes on from there.

A group's results are kept under a hash of everything that they follow from: policies, source,
shapes, rates, seeds, records, versions and the code itself. Any change gives another name, and the
old file is not looked at. `study.py` drops the folder when the point is stored.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cqbjax.core.code import digest
from cqbjax.core.files import arrays_digest, content_key, write_atomic

# Where the simulator begins.
ENGINE = "cqbjax.sweeping.sweep"


def key(*parts: Any) -> str:
    """Hash trees of arrays, dataclasses and plain values, with the code and how JAX is set up.

    Args:
        parts: what results follow from. The modules that define the classes found in them count
            too: a user's own policy, changed, is another one.

    Returns:
        A file name without ending.
    """
    return content_key(held(parts), code(*parts))


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
    setup = (jax.__version__, jax.default_backend(), str(jnp.zeros(()).dtype))
    return content_key(*setup, digest([ENGINE], *parts))


@dataclasses.dataclass(frozen=True)
class Measured:
    """One policy's results.

    Attributes:
        recorded: name -> [L, S, R, ...], or [L, S, ...] of what is read at a run's end.
        seconds_per_round: run seconds a round-run.
        compile_seconds: of its group's programs.
    """

    recorded: Mapping[str, np.ndarray]
    seconds_per_round: float
    compile_seconds: float


def load(path: Path) -> dict[str, Measured] | None:
    """Return the policies of a kept group by name, or None if it was not kept.

    Raises:
        ValueError: the file is damaged.
    """
    if not path.is_file():
        return None
    try:
        with np.load(path, allow_pickle=False) as file:
            return {
                str(name): Measured(
                    {str(one): file[f"{i}.{one}"] for one in file["recorded"]},
                    float(file["seconds"][i]), float(file["compile_seconds"][i]),
                )
                for i, name in enumerate(file["names"])
            }  # fmt: skip
    except Exception as error:
        raise ValueError(f"{path}: not readable, delete it to run again: {error}") from error


def save(path: Path, measured: Mapping[str, Measured]) -> None:
    """Keep the policies of a finished group, each by its name."""
    arrays: dict[str, Any] = {
        f"{i}.{name}": np.asarray(values)
        for i, one in enumerate(measured.values())
        for name, values in one.recorded.items()
    }
    arrays["recorded"] = np.asarray(list(next(iter(measured.values())).recorded))
    arrays["names"] = np.asarray(list(measured))
    arrays["seconds"] = np.asarray([one.seconds_per_round for one in measured.values()])
    arrays["compile_seconds"] = np.asarray([one.compile_seconds for one in measured.values()])
    write_atomic(path, lambda file: np.savez(file, **arrays))
