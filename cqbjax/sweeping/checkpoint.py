"""What an interrupted sweep had finished, so that the same sweep goes on from there.

A group's results are kept under a hash of everything that they follow from: policies, source,
shapes, rates, seeds, records, versions and the code itself. Any change gives another name, and the
old file is not looked at. `study.py` drops the folder when the point is stored.
"""

import dataclasses
import functools
import sys
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cqbjax.core.files import arrays_digest, content_key, sha256, write_atomic

PACKAGE = Path(__file__).resolve().parents[1]
# Rooms whose code no number of a result follows from.
LOOKING_ON = (
    "results",
    "store",
    "figures",
    "paper",
    "page",
    "bench",
    "testing",
    "commands",
    "studies",
)


def key(*parts: Any) -> str:
    """Hash trees of arrays, dataclasses and plain values, with the code and how JAX is set up.

    Args:
        parts: what results follow from. The modules that define the classes found in them count
            too: a user's own policy, changed, is another one.

    Returns:
        A file name without ending.
    """
    leaves, structure = jax.tree.flatten(parts)
    arrays = [np.asarray(leaf) for leaf in leaves]
    assert all(array.dtype != object for array in arrays), "an object has no bytes to hash"
    return content_key(str(structure), arrays_digest(arrays), code(*parts))


def code(*parts: Any) -> str:
    """Hash the code that computes results, and how JAX is set up.

    Args:
        parts: trees; a class in them that is none of this package's counts with its module's file.
    """
    modules = sorted({module for part in parts for module in _modules(part)})
    setup = (jax.__version__, jax.default_backend(), str(jnp.zeros(()).dtype))
    return content_key(*setup, _package_digest(), *(_file_digest(module) for module in modules))


def _modules(tree: Any) -> Iterator[str]:
    """Yield the modules of the dataclasses in a tree, but for this package's."""
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        module = type(tree).__module__
        if not module.startswith("cqbjax."):
            yield module
        for field in dataclasses.fields(tree):
            yield from _modules(getattr(tree, field.name))


def _file_digest(module: str) -> str:
    """Hash a module's file; without one (a notebook) changes go unseen, so no two are alike."""
    file = getattr(sys.modules.get(module), "__file__", None)
    return uuid.uuid4().hex if file is None else sha256(Path(file))


@functools.cache
def _package_digest() -> str:
    """Hash this package's own code, but for the rooms that only look at results."""
    paths = [
        path for path in sorted(PACKAGE.rglob("*.py"))
        if path.relative_to(PACKAGE).parts[0] not in LOOKING_ON
    ]  # fmt: skip
    return content_key(
        *(f"{path.relative_to(PACKAGE).as_posix()} {sha256(path)}" for path in paths)
    )


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
