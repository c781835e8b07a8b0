"""The utility-aligned projection head of ACQB-CL: network, training, file, and each seed's head.

The head B of Algorithm 3 is trained once, offline, on a seed's offline split and then frozen;
ACQB-CL runs ACQB on z = B(x). docs/notebook/projection.md argues the choices that the paper leaves
open.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax.core import rng
from cqbjax.datasets import raw_utility
from cqbjax.offline import contrastive
from cqbjax.offline.contrastive import ContrastiveConfig, Params, normalise
from cqbjax.offline.fits import FitData

# Folded into the key of each layer's weights; flax, which held the network before, derived them.
HIDDEN_KEY, OUTPUT_KEY = 0xB785D8D3, 0xA3840AA7
# Heads trained by one call: bounds the memory of the samples, whose cosines are [n, n] a seed.
HEADS_AT_ONCE = 20


class History(NamedTuple):
    """Training history of one fit.

    Attributes:
        loss: [epochs] mean InfoNCE loss of the queries used, in nats, before the step.
        used: [epochs] int32, queries with a positive and a negative.
    """

    loss: Array
    used: Array


def init_head(key: Array, dimension: int, config: ContrastiveConfig) -> Params:
    """Return untrained parameters of a two-layer MLP, the B(.; theta) of Algorithm 3.

    The weights are LeCun noise, and the biases 0.

    Args:
        key: random key.
        dimension: d, that of the embeddings.
        config: settings.
    """
    hidden, outputs, lecun = config.hidden, config.outputs, jax.nn.initializers.lecun_normal()
    first = lecun(jax.random.fold_in(key, HIDDEN_KEY), (dimension, hidden), jnp.float32)
    second = lecun(jax.random.fold_in(key, OUTPUT_KEY), (hidden, outputs), jnp.float32)
    return {
        "hidden": first, "hidden_bias": jnp.zeros(hidden, jnp.float32),
        "output": second, "output_bias": jnp.zeros(outputs, jnp.float32),
    }  # fmt: skip


@jax.jit
def project(params: Params, embeddings: Array) -> Array:
    """Map embeddings [..., d] through a trained head to features z [..., outputs].

    |z| = 1, which keeps the paper's assumption |x| <= 1.
    """
    x = jax.nn.relu(embeddings @ params["hidden"] + params["hidden_bias"])
    return normalise(x @ params["output"] + params["output_bias"])


@jax.jit
def fit(
    key: Array,
    embeddings: Array,
    utilities: Array,
    config: ContrastiveConfig,
    available: Array,
) -> tuple[Params, History]:
    """Train one head: a pure function of (key, data), which `vmap` maps over seeds.

    Algorithm 3 on a model-balanced sample: each epoch is one gradient step on the sum of the losses
    of the queries that have a positive and a negative.

    Args:
        key: Random key of the sample, the initial weights and the minibatches.
        embeddings: [n, d] frozen encoder outputs.
        utilities: [n, N] perf - rho * cost.
        config: Settings.
        available: [n] bool, the prompts of the offline split. The sample holds no other row, so
            that seeds share one embedding array.

    Returns:
        The parameters and the `History`.
    """
    key_sample, key_init, key_epochs = jax.random.split(key, 3)
    sample = contrastive.draw_balanced_sample(
        key_sample, utilities, config.prompts_per_model, available
    )
    # Padded slots point at rows of other seeds, which may be missing (nan): set to 0.
    real = sample.mask[:, None]
    x = jnp.where(real, embeddings[sample.rows].astype(jnp.float32), 0.0)
    u = jnp.where(real, utilities[sample.rows], 0.0)
    cosine = contrastive.utility_cosine(u)
    # A row without a preference has cosine 0 with itself; its servers are equally good.
    mask = sample.mask & (jnp.diagonal(cosine) > 0)

    def loss(params: Params, key: Array) -> tuple[Array, History]:
        slots, valid = contrastive.draw_minibatch(key, mask, config.prompts_per_epoch)
        pairs = contrastive.select_pairs(
            cosine[slots[:, None], slots[None, :]],
            config.iota_pos, config.iota_neg, config.negatives, valid,
        )  # fmt: skip
        z = project(params, x[slots])
        total = jnp.sum(contrastive.info_nce(z, pairs, config.temperature))
        used = jnp.sum(pairs.used, dtype=jnp.int32)
        return total, History(total / jnp.maximum(used, 1).astype(total.dtype), used)

    return contrastive.train_adamw(
        init_head(key_init, x.shape[1], config), loss,
        jax.random.split(key_epochs, config.epochs), config.learning_rate, config.weight_decay,
    )  # fmt: skip


def fit_heads(
    keys: Array,
    embeddings: np.ndarray,
    utilities: np.ndarray,
    available: np.ndarray,
    config: ContrastiveConfig,
) -> tuple[Params, History]:
    """Train the heads of all seeds at once on one shared pool of prompts.

    Args:
        keys: [S] random keys.
        embeddings: [n, d] embeddings of all prompts of the table.
        utilities: [n, N] utilities of all prompts of the table.
        available: [S, n] bool, each seed's offline split.
        config: Settings, the same for all seeds.

    Returns:
        Parameters and history with a leading axis S.

    Raises:
        ValueError: If no query of a seed had a positive and a negative at any epoch, so that
            nothing was learnt.
    """
    mapped = jax.jit(jax.vmap(fit, in_axes=(0, None, None, None, 0)))
    with jax.enable_x64(False):  # in 64 bits AdamW rounds otherwise
        params, history = mapped(
            keys, jnp.asarray(embeddings, jnp.float32), jnp.asarray(utilities, jnp.float32),
            config, jnp.asarray(available),
        )  # fmt: skip
    untrained = np.asarray(history.used).sum(axis=1) == 0
    if untrained.any():
        raise ValueError(
            f"the head of seed {int(np.argmax(untrained))} learnt nothing: with iota_pos="
            f"{config.iota_pos} and iota_neg={config.iota_neg} no prompt has a positive and "
            "a negative."
        )
    return params, history


def train_heads(
    config: ContrastiveConfig, data: FitData, seeds: Sequence[int], label: str = "acqb_cl"
) -> dict[int, Params]:
    """Train each seed's head on its offline split, or load it from the cache.

    Args:
        config: settings.
        data: from `make_fit_data`; heads lie at `data.folder/head_<seed>_<hash>.npz`.
        seeds: [S] seeds of the runs.
        label: label of the policy, for the progress bar.

    Raises:
        ValueError: an evaluation prompt in a split, a damaged file, or a head that learns nothing.
    """
    source = data.source

    def fit_seeds(*seeds: int) -> list[Params]:
        available = np.zeros((len(seeds), source.table.num_prompts), bool)
        for row, seed in zip(available, seeds, strict=True):
            row[source.split(seed).offline] = True
        rounds = [rng.round_key(rng.run_key(seed), 0) for seed in seeds]
        keys = jnp.stack([rng.stream_key(key, rng.Stream.HEAD) for key in rounds])
        utilities = raw_utility(source.table.performance, source.cost, source.rho)
        stacked, _ = fit_heads(keys, source.embeddings, utilities, available, config)
        return [{name: leaf[i] for name, leaf in stacked.items()} for i in range(len(seeds))]

    settings = dict.fromkeys(seeds, config)
    return data.fit_or_load("head", f"fitting {label}", settings, fit_seeds, at_once=HEADS_AT_ONCE)


def project_rows(
    config: ContrastiveConfig, data: FitData, rows: Mapping[int, np.ndarray], label: str
) -> dict[int, np.ndarray]:
    """Return each seed's contexts [rows, e] of some prompts by its head, as `train_heads`."""
    heads = train_heads(config, data, list(rows), label)
    return {
        seed: np.asarray(project(params, data.source.embeddings[rows[seed]]))
        for seed, params in heads.items()
    }
