"""How far the chunks of an unfinished group are, so that a killed run goes on to the same bits.

A chunk's file holds the scan's carry and what was recorded up to it; of a chunk that is done, what
came of it. What a round draws is addressed by seed and round, so nothing else has to be kept.
"""

import contextlib
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cqbjax.core.files import write_atomic

# Least seconds between two carries that are kept: what a kill may cost.
SECONDS = 60.0


class Snapshots:
    """The snapshots of a group, a file a chunk."""

    def __init__(self, folder: Path | None, name: str = "") -> None:
        """Keep them in a folder; None keeps none.

        Args:
            folder: as in `sweep`.
            name: of the group: a hash of all that its results follow from.
        """
        self._folder, self._name, self._last = folder, name, time.monotonic()

    def load(self, chunk: str, like: Any) -> Any:
        """Return a chunk's tree as it was kept, or None.

        Args:
            chunk: its name.
            like: a tree of the same structure.

        Raises:
            ValueError: the file is damaged.
        """
        path = self._path(chunk)
        if path is None:
            return None
        leaves, structure = jax.tree.flatten(like)
        try:
            with np.load(path, allow_pickle=False) as file:
                kept = [file[str(i)] for i in range(len(leaves))]
        except FileNotFoundError:
            return None
        except Exception as error:  # a zip that is torn, or an entry that is not there
            raise ValueError(f"{path}: not readable, delete it to run again: {error}") from error
        return jax.tree.unflatten(structure, map(_as, kept, leaves))

    def save(self, chunk: str, tree: Any, always: bool = False) -> None:
        """Keep a chunk's tree in place of the one before, if that is not too soon.

        Args:
            chunk: its name.
            tree: of arrays.
            always: keep it however soon.
        """
        path = self._path(chunk)
        if path is None or not (always or time.monotonic() - self._last >= SECONDS):
            return
        arrays: dict[str, Any] = {
            str(i): _plain(leaf) for i, leaf in enumerate(jax.tree.leaves(tree))
        }
        with contextlib.suppress(FileNotFoundError):  # who runs the same has finished, and tidied
            write_atomic(path, lambda file: np.savez(file, **arrays))
        self._last = time.monotonic()

    def drop(self, chunk: str = "*") -> None:
        """Forget a chunk, or all of the group's."""
        if self._folder is not None:
            for path in self._folder.glob(f"{self._name}.{chunk}.snapshot"):
                path.unlink(missing_ok=True)

    def _path(self, chunk: str) -> Path | None:
        return None if self._folder is None else self._folder / f"{self._name}.{chunk}.snapshot"


def _plain(leaf: Any) -> np.ndarray:
    """Return a leaf as numbers, a random key's bits included."""
    return np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)


def _as(kept: np.ndarray, leaf: Any) -> Any:
    """Return numbers as what they were: a leaf of the same kind tells it."""
    if _is_key(leaf):
        return jax.random.wrap_key_data(jnp.asarray(kept), impl=jax.random.key_impl(leaf))
    return kept


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
