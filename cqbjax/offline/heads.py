"""Contrastive heads of a study's seeds, trained together and kept, a file each."""

from collections.abc import Iterator, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from cqbjax.core import rng
from cqbjax.datasets import raw_utility
from cqbjax.offline import projection
from cqbjax.offline.contrastive import ContrastiveConfig
from cqbjax.offline.fits import Data, kept
from cqbjax.offline.projection import HEADS, Head

# Heads trained by one call: bounds the memory of the samples, whose cosines are [n, n] a seed.
HEADS_AT_ONCE = 20


def trained(
    config: ContrastiveConfig, data: Data, seeds: Sequence[int], label: str = "acqb_cl"
) -> dict[int, Head]:
    """Return each seed's head, trained on its offline split or kept.

    Args:
        config: settings.
        data: from `fits.read`; heads lie at `data.folder/head_<seed>_<hash>.msgpack`.
        seeds: [S] of the runs.
        label: of the policy, for the progress bar.

    Raises:
        ValueError: an evaluation prompt in a split, a damaged file, or a head that learns nothing.
    """
    source, settings = data.source, (config, data.rho)
    paths = {seed: data.path(seed, HEADS, __name__, settings) for seed in seeds}
    paths = {seed: path.with_name(f"head_{seed}_{path.name}") for seed, path in paths.items()}

    def fit(seeds: Sequence[int]) -> Iterator[Head]:
        available = np.zeros((len(seeds), source.table.num_prompts), bool)
        for row, seed in zip(available, seeds, strict=True):
            row[source.split(seed).offline] = True
        rounds = [rng.round_key(rng.run_key(seed), 0) for seed in seeds]
        keys = jnp.stack([rng.stream_key(key, rng.Stream.HEAD) for key in rounds])
        utilities = raw_utility(source.table.performance, source.cost, data.rho)
        stacked, _ = projection.fit_heads(keys, data.embeddings, utilities, available, config)
        for i in range(len(seeds)):
            yield Head(jax.tree.map(lambda leaf: leaf[i], stacked), config)  # noqa: B023

    return kept(data, f"fitting {label}", paths, HEADS, fit, HEADS_AT_ONCE)


def contexts(
    config: ContrastiveConfig, data: Data, rows: Mapping[int, np.ndarray], label: str
) -> dict[int, np.ndarray]:
    """Return each seed's contexts [rows, e] of some prompts by its head; arguments as `trained`."""
    heads = trained(config, data, list(rows), label)
    return {
        seed: np.asarray(projection.project(head.params, data.embeddings[rows[seed]], head.config))
        for seed, head in heads.items()
    }
