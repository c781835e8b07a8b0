"""Checkpoints of unfinished batches, and the cache keys that name them.

A killed sweep continues from its checkpoints to the same bits. The file of an unfinished chunk
holds the scan's carry and all records so far; that of a finished chunk holds its results. Random
draws are addressed by seed and round, so nothing else has to be stored.
"""

import contextlib
import dataclasses
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cqbjax.core.code import digest
from cqbjax.core.files import arrays_digest, hash_parts, write_atomic
from cqbjax.engine.batches import Batch

# Least seconds between two checkpoints: about what a kill may cost.
SECONDS = 60.0
# The folders whose code every simulation runs.
SIMULATOR = (
    "cqbjax.core", "cqbjax.dynamics", "cqbjax.engine", "cqbjax.estimation", "cqbjax.policies",
    "cqbjax.sources",
)  # fmt: skip


def batch_key(batch: Batch) -> str:
    """Return the cache key of a batch: a hash of all that determines its results.

    Another policy, source, shape, rate, seed, record, version or line of code gives another key.
    The modules of user-defined classes count too.
    """
    spec = batch.spec
    names = [f"{member.spec} {member.label}" for member in batch.members]
    rates = [(spec.rates, spec.seeds) for spec in batch.specs]
    determined_by = (
        names, spec.capacity, batch.policies, batch.numbers, batch.tables, spec.problem,
        spec.records.rounds, rates, [repr(one) for one in spec.recorders],
        hash_code(*spec.recorders),
    )  # fmt: skip
    return hash_parts(hash_tree(determined_by), hash_code(*determined_by))


def hash_tree(tree: Any) -> str:
    """Hash the structure and the arrays of a tree.

    Raises:
        ValueError: the tree holds an object that is not an array, a number or a string.
    """
    leaves, structure = jax.tree.flatten(tree)
    arrays = [np.asarray(leaf) for leaf in leaves]
    if any(array.dtype == object for array in arrays):
        raise ValueError(f"{type(tree).__name__} holds an object that is no array and no number")
    return hash_parts(str(structure), arrays_digest(arrays))


def hash_code(*objects: Any) -> str:
    """Hash the code that simulates, the code of `objects` (`core.code.digest`), and JAX's setup."""
    setup = (jax.__version__, jax.default_backend(), str(jnp.result_type(float)))
    return hash_parts(*setup, digest(SIMULATOR, *objects))


@dataclasses.dataclass
class Checkpoints:
    """The checkpoints of a batch, one file per chunk.

    Attributes:
        folder: folder of the files; None stores and loads nothing.
        key: from `batch_key`; file names begin with it.
        last: when a checkpoint was last stored, as `time.monotonic` has it.
    """

    folder: Path | None
    key: str = ""
    last: float = dataclasses.field(default_factory=time.monotonic)

    def load(self, chunk: str, like: Any) -> Any:
        """Return the stored tree of a chunk, or None.

        Args:
            chunk: its name.
            like: a tree of the same structure.

        Raises:
            ValueError: the file is damaged.
        """
        if self.folder is None:
            return None
        path = self.folder / f"{self.key}.{chunk}.checkpoint"
        leaves, structure = jax.tree.flatten(like)
        try:
            with np.load(path, allow_pickle=False) as file:
                stored = [file[str(i)] for i in range(len(leaves))]
        except FileNotFoundError:
            return None
        except Exception as error:  # a truncated zip, or an entry that is missing
            raise ValueError(f"{path}: not readable, delete it to run again: {error}") from error
        for number, leaf in enumerate(leaves):
            if _is_key(leaf):
                data, impl = jnp.asarray(stored[number]), jax.random.key_impl(leaf)
                stored[number] = jax.random.wrap_key_data(data, impl=impl)
        return jax.tree.unflatten(structure, stored)

    def save(self, chunk: str, tree: Any, always: bool = False) -> None:
        """Store the tree of a chunk, unless the last checkpoint is less than `SECONDS` old.

        Args:
            chunk: its name.
            tree: a tree of arrays.
            always: whether to store it even if the last checkpoint is recent.
        """
        if self.folder is None or not (always or time.monotonic() - self.last >= SECONDS):
            return
        arrays: dict[str, Any] = {
            str(i): np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)
            for i, leaf in enumerate(jax.tree.leaves(tree))
        }
        path = self.folder / f"{self.key}.{chunk}.checkpoint"
        # Another process that ran the same batch may have finished and removed the folder.
        with contextlib.suppress(FileNotFoundError):
            write_atomic(path, lambda file: np.savez(file, **arrays))
        self.last = time.monotonic()

    def drop(self, chunk: str = "*") -> None:
        """Delete the checkpoint of a chunk, or all of the batch."""
        for path in self.folder.glob(f"{self.key}.{chunk}.checkpoint") if self.folder else ():
            path.unlink(missing_ok=True)


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
