"""RouterDC (Chen et al. 2024) on frozen embeddings: a trainable projection and LLM embeddings.

The authors fine-tune mDeBERTa; here the encoder is frozen, as for every router of the study, and a
trainable linear projection takes its place. Both contrastive losses are kept.
"""

import functools
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax.core import rng
from cqbjax.core.inputs import check_interval
from cqbjax.offline.contrastive import Params, normalise, train_adamw
from cqbjax.offline.routers.base import Floats, OfflineSplit, Router, ScoringRouter, cluster

# Folded into the key of each array; flax, which held the model before, derived them.
SERVERS_KEY, PROJECTION_KEY = 0xBF8B4530, 0x5F0829B9
PADDED = 256  # rows to a multiple of which a split is padded


def init_model(key: Array, dimension: int, servers: int, width: int) -> Params:
    """Return untrained parameters: a projection of the embedding, and one embedding per server."""
    draw, lecun = jax.nn.initializers.normal(0.78), jax.nn.initializers.lecun_normal()
    return {
        "servers": draw(jax.random.fold_in(key, SERVERS_KEY), (servers, width), jnp.float32),
        "projection": lecun(
            jax.random.fold_in(key, PROJECTION_KEY), (dimension, width), jnp.float32
        ),
        "bias": jnp.zeros(width, jnp.float32),
    }


def project(params: Params, x: Array) -> Array:
    """Return unit query vectors [B, width] of embeddings [B, d]."""
    return normalise(x @ params["projection"] + params["bias"])


class TrainingBatch(NamedTuple):
    """Rows [B] of the split, a same-cluster row [B] each and rows of other clusters [B, H]."""

    rows: Array
    same: Array
    other: Array


class ClusterLayout(NamedTuple):
    """Clusters laid out contiguously: order of the rows, each row's cluster start and size, [n].

    The arrays may be padded at their end: the first `real` ones count.
    """

    order: Array
    start: Array
    size: Array
    real: Array


def sample_llm_loss(
    cosine: Array, target: Array, top: int, last: int, floor: float, ceiling: float
) -> Array:
    """Compute RouterDC's sample-LLM contrastive loss of each sample.

    Each of the `top` servers of highest target, unless at or below the floor, is contrasted with
    the `last` servers of lowest target, unless above the ceiling, at temperature 1.

    Args:
        cosine: [B, N] similarity of samples and servers.
        target: [B, N] utilities.
        top: Number of positives per sample.
        last: Number of negatives per sample.
        floor: A positive at or below it is skipped.
        ceiling: A negative above it is masked.

    Returns:
        [B] sums over the positives.
    """
    high, positives = jax.lax.top_k(target, top)
    low, negatives = jax.lax.top_k(-target, last)
    positive = jnp.take_along_axis(cosine, positives, axis=1)
    negative = jnp.take_along_axis(cosine, negatives, axis=1)
    negative = jnp.where(-low > ceiling, -jnp.inf, negative)
    rest = jax.nn.logsumexp(negative, axis=1, keepdims=True, where=-low <= ceiling)
    loss = jnp.logaddexp(positive, rest) - positive
    return jnp.sum(jnp.where(high > floor, loss, 0.0), axis=1)


def sample_sample_loss(anchor: Array, same: Array, other: Array) -> Array:
    """Compute the cluster loss [B] of anchors [B, w], same-cluster [B, w] and other [B, H, w]."""
    positive = jnp.sum(anchor * same, axis=-1, keepdims=True)
    negative = jnp.sum(anchor[:, None, :] * other, axis=-1)
    logits = jnp.concatenate([positive, negative], axis=1)
    return jax.nn.logsumexp(logits, axis=1) - positive[:, 0]


def draw_batch(key: Array, layout: ClusterLayout, size: int, others: int) -> TrainingBatch:
    """Draw rows, a row of the same cluster for each, and rows of other clusters, uniformly."""
    n = layout.real
    key_rows, key_same, key_other = jax.random.split(key, 3)
    rows = jax.random.randint(key_rows, (size,), 0, n, jnp.int32)
    start, count = layout.start[rows], layout.size[rows]
    same = layout.order[start + jax.random.randint(key_same, (size,), 0, count, jnp.int32)]
    # The rows after the cluster, cyclically, are exactly the other clusters.
    others_count = jnp.maximum(n - count, 1)[:, None]
    skip = jax.random.randint(key_other, (size, others), 0, others_count, jnp.int32)
    other = layout.order[((start + count)[:, None] + skip) % n]
    return TrainingBatch(rows, same, other)


@functools.partial(jax.jit, static_argnames="settings")
def train(
    key: Array, embeddings: Array, target: Array, layout: ClusterLayout, settings: "RouterDC"
) -> tuple[Params, Array]:
    """Train by AdamW; return the parameters and the loss [steps]."""
    key_init, key_steps = jax.random.split(key)
    top = min(settings.top_k, target.shape[1])
    last = min(settings.last_k, target.shape[1])

    def loss(params: Params, key: Array) -> tuple[Array, Array]:
        batch = draw_batch(key, layout, settings.batch, settings.others)
        anchor = project(params, embeddings[batch.rows])
        same = project(params, embeddings[batch.same])
        other = project(params, embeddings[batch.other])
        servers = normalise(params["servers"])
        routing = sample_llm_loss(
            anchor @ servers.T, target[batch.rows], top, last, settings.floor, settings.ceiling
        )
        cluster = sample_sample_loss(anchor, same, other)
        total = jnp.mean(routing) + settings.cluster_weight * jnp.mean(cluster)
        return total, total

    return train_adamw(
        init_model(key_init, embeddings.shape[1], target.shape[1], settings.width), loss,
        jax.random.split(key_steps, settings.steps), settings.learning_rate, settings.weight_decay,
    )  # fmt: skip


@dataclass(frozen=True)
class RouterDC(Router):
    """Route by the cosine of a projected query and learnt server embeddings; nothing is tuned.

    Attributes:
        width: Dimension of the shared space.
        top_k: Number of positives per sample.
        last_k: Number of negatives per sample.
        floor: Positives with a target at or below it are skipped.
        ceiling: Negatives with a target above it are masked.
        others: Other-cluster samples H of the cluster loss.
        clusters: Clusters of the embeddings (k-means).
        cluster_weight: Weight lambda of the cluster loss.
        learning_rate: AdamW's step.
        weight_decay: AdamW's decoupled weight decay.
        steps: Gradient steps.
        batch: Number of samples per step.
    """

    width: int = 768
    top_k: int = 4
    last_k: int = 4
    floor: float = 0.0
    ceiling: float = 0.5
    others: int = 3
    clusters: int = 8
    cluster_weight: float = 1.0
    learning_rate: float = 5e-5
    weight_decay: float = 0.01
    steps: int = 1000
    batch: int = 64

    def __post_init__(self) -> None:
        """Check the sizes."""
        sizes = "width", "top_k", "last_k", "others", "clusters", "steps", "batch"
        check_interval(self, "[1, inf)", *sizes, whole=True)

    def fit(self, split: OfflineSplit, *, rho: float, seed: int) -> ScoringRouter:
        """Cluster the split, then train the projection and the server embeddings."""
        split = split.sort_rows()
        # Splits of nearly one size, as seeds have them, then share a compiled program.
        padding = -len(split.embeddings) % PADDED
        x, target = (
            jnp.pad(jnp.asarray(values, jnp.float32), ((0, padding), (0, 0)))
            for values in (split.embeddings, split.utility(rho))
        )
        layout = lay_out_clusters(split.embeddings, self.clusters, seed, padding)
        with jax.enable_x64(False):  # in 64 bits AdamW rounds otherwise
            params, _ = train(rng.run_key(seed), x, target, layout, self)

        def score(queries: Floats) -> Floats:
            # A cosine in [-1, 1]: the order within a prompt is what was learnt.
            query = project(params, jnp.asarray(queries, jnp.float32))
            return np.asarray(query @ normalise(params["servers"]).T)

        return ScoringRouter(score)


def lay_out_clusters(
    embeddings: Floats, clusters: int, seed: int, padding: int = 0
) -> ClusterLayout:
    """Cluster embeddings [n, d] by k-means, lay the clusters out contiguously, pad the arrays."""
    labels = cluster(embeddings, clusters, seed).labels_
    size = np.bincount(labels)
    start = np.cumsum(size) - size
    order = np.argsort(labels, kind="stable")
    padded = (np.pad(each, (0, padding)) for each in (order, start[labels], size[labels]))
    arrays = (jnp.asarray(each, jnp.int32) for each in (*padded, len(labels)))
    return ClusterLayout(*arrays)
