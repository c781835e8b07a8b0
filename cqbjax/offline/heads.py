"""Contrastive heads of a study's seeds, trained together and kept by content, a file each."""

import pathlib
from collections.abc import Iterator, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from cqbjax.core import rng
from cqbjax.datasets import DatasetSource, Split, raw_utility
from cqbjax.offline import projection
from cqbjax.offline.contrastive import ContrastiveConfig
from cqbjax.offline.fits import Data, fit_key, read
from cqbjax.sweeping.progress import Reporter, Silent

# Heads trained by one call: bounds the memory of the samples, whose cosines are [n, n] a seed.
HEADS_AT_ONCE = 20


def head_files(
    source: DatasetSource,
    seeds: Sequence[int],
    cache_dir: pathlib.Path,
    head: ContrastiveConfig,
    progress: Reporter | None = None,
) -> list[pathlib.Path]:
    """Return the file of each seed's contrastive head; those that are not there yet are trained.

    `projection.load_heads` reads one, `projection.project` applies it.

    Args:
        source: the dataset.
        seeds: [S] of the runs.
        cache_dir: heads lie at `cache_dir/<dataset>/head_<seed>_<hash>.msgpack`.
        head: settings.
        progress: told of the training.

    Raises:
        ValueError: an evaluation prompt in a split, or a head that learns nothing.
    """
    data = read(source, cache_dir)
    splits = {int(seed): source.split(int(seed)) for seed in seeds}
    return kept_heads("acqb_cl", head, data, splits, progress or Silent())


def pool_contexts(
    label: str, head: ContrastiveConfig, data: Data, splits: Mapping[int, Split], progress: Reporter
) -> list[np.ndarray]:
    """Return each seed's projected contexts [I, e] of its pool; arguments as `kept_heads`."""
    pools = {seed: parts.pool for seed, parts in splits.items()}
    return list(_projected(label, head, data, splits, progress, pools).values())


def all_contexts(
    label: str, head: ContrastiveConfig, data: Data, splits: Mapping[int, Split], progress: Reporter
) -> dict[int, np.ndarray]:
    """Return the contexts of all prompts by each seed's head [P, e]; arguments as `kept_heads`."""
    every = dict.fromkeys(splits, np.arange(len(data.embeddings)))
    return _projected(label, head, data, splits, progress, every)


def _projected(
    label: str, head: ContrastiveConfig, data: Data, splits: Mapping[int, Split],
    progress: Reporter, rows: Mapping[int, np.ndarray],
) -> dict[int, np.ndarray]:  # fmt: skip
    """Return the contexts of some prompts of each seed, by its head."""
    by_seed, paths = {}, kept_heads(label, head, data, splits, progress)
    for seed, path in zip(splits, paths, strict=True):
        params, config = projection.load_heads(path)
        prompts = jnp.asarray(data.embeddings[rows[seed]])
        by_seed[seed] = np.asarray(projection.project(params, prompts, config))
    return by_seed


def kept_heads(
    label: str, head: ContrastiveConfig, data: Data, splits: Mapping[int, Split], progress: Reporter
) -> list[pathlib.Path]:
    """Train the heads that are not kept yet and return the file of every seed's.

    Args:
        label: of the policy, for the progress bar.
        head: settings.
        data: from `fits.read`.
        splits: seed -> its split.
        progress: told of the training.
    """
    rho = data.source.rho
    keys = {seed: fit_key(data, parts, seed, head, rho) for seed, parts in splits.items()}
    paths = {seed: data.folder / f"head_{seed}_{key}.msgpack" for seed, key in keys.items()}
    missing = [seed for seed, path in paths.items() if not path.is_file()]
    with progress.steps(f"fitting {label}", len(missing)) as done:
        for batch in _batches(missing, HEADS_AT_ONCE):
            stacked = _fit_heads(head, data, [splits[seed] for seed in batch], batch)
            for i, seed in enumerate(batch):
                params = jax.tree.map(lambda leaf: leaf[i], stacked)  # noqa: B023
                projection.save_heads(paths[seed], params, head)
            done(len(batch))
    return list(paths.values())


def _fit_heads(
    head: ContrastiveConfig, data: Data, splits: Sequence[Split], seeds: Sequence[int]
) -> projection.Params:
    """Train the heads of these seeds at once, each on its own offline split."""
    table, source = data.source.table, data.source
    available = np.zeros((len(seeds), table.num_prompts), bool)
    for row, parts in zip(available, splits, strict=True):
        row[parts.offline] = True
    keys = [rng.stream_key(rng.round_key(rng.run_key(seed), 0), rng.Stream.HEAD) for seed in seeds]
    utilities = raw_utility(table.performance, source.cost, source.rho)
    return projection.fit_heads(jnp.stack(keys), data.embeddings, utilities, available, head)[0]


def _batches(seeds: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    for start in range(0, len(seeds), size):
        yield seeds[start : start + size]
