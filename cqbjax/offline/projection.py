"""The utility-aligned projection head of ACQB-CL: module, training, saving.

The head B of Algorithm 3 is trained once, offline, on a seed's offline split and then frozen;
ACQB-CL runs ACQB on z = B(x). docs/notebook/projection.md argues the choices that the paper leaves
open.
"""

import dataclasses
import pathlib
from typing import IO, Any, NamedTuple, cast

import flax.linen as nn
import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from cqbjax.core.files import FileFormat
from cqbjax.offline.contrastive import (
    ContrastiveConfig,
    Pairs,
    balanced_sample,
    has_preference,
    info_nce,
    minibatch,
    select_pairs,
    unit,
    utility_cosine,
)

Params = dict[str, Any]
FORMAT = 1


class Head(NamedTuple):
    """Trained parameters (of one head, or stacked over seeds) and their settings."""

    params: Params
    config: ContrastiveConfig


class History(NamedTuple):
    """What one fit did, epoch by epoch.

    Attributes:
        loss: [epochs] mean InfoNCE loss of the queries used, in nats, before the step.
        used: [epochs] int32, queries that had a positive and a negative.
    """

    loss: Array
    used: Array


class ProjectionHead(nn.Module):
    """Two-layer MLP d -> hidden -> outputs with ReLU, the B(.; theta) of Algorithm 3."""

    hidden: int
    outputs: int
    mirror: bool

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Map embeddings [..., d] to unnormalised z [..., outputs]."""
        lecun = nn.initializers.lecun_normal()
        first, second = (_mirror_in, _mirror_out) if self.mirror else (lecun, lecun)
        x = nn.relu(nn.Dense(self.hidden, kernel_init=first, name="hidden")(x))
        return nn.Dense(self.outputs, kernel_init=second, name="output")(x)


def _mirror_in(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
    """Start at [I, -I, LeCun noise]: relu(x) and relu(-x) together lose nothing."""
    d, hidden = shape
    _check_mirror(hidden, 2 * d, f"on {d}-dimensional embeddings")
    spare = nn.initializers.lecun_normal()(key, (d, hidden), dtype)[:, 2 * d :]
    return jnp.concatenate([jnp.eye(d, dtype=dtype), -jnp.eye(d, dtype=dtype), spare], axis=1)


def _mirror_out(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
    """Start at [I; -I; 0], so that the head is the identity."""
    hidden, outputs = shape
    _check_mirror(hidden, 2 * outputs, f"with {outputs} outputs")
    eye = jnp.eye(outputs, dtype=dtype)
    return jnp.concatenate([eye, -eye, jnp.zeros((hidden - 2 * outputs, outputs), dtype)])


def _check_mirror(hidden: int, least: int, where: str) -> None:
    if hidden < least:
        raise ValueError(
            f"contrastive hidden is {hidden}; init 'mirror' {where} needs at least {least} (or "
            "choose init 'random')."
        )


def _module(config: ContrastiveConfig) -> ProjectionHead:
    return ProjectionHead(config.hidden, config.outputs, config.init == "mirror")


def _forward(params: Params, x: Array, config: ContrastiveConfig) -> Array:
    return cast(Array, _module(config).apply(params, x))


def _optimiser(config: ContrastiveConfig) -> optax.GradientTransformation:
    if config.optimiser == "adamw":
        return optax.adamw(config.learning_rate, weight_decay=config.weight_decay)
    return optax.chain(
        optax.add_decayed_weights(config.weight_decay), optax.sgd(config.learning_rate)
    )


def init_head(key: Array, dimension: int, config: ContrastiveConfig) -> Params:
    """Make the untrained parameters for embeddings of `dimension`.

    Raises:
        ValueError: If init is "mirror" and outputs differs from `dimension` or hidden is too small.
    """
    if config.init == "mirror" and config.outputs != dimension:
        raise ValueError(
            f"contrastive outputs is {config.outputs} but the embeddings have {dimension} "
            "dimensions; init 'mirror' needs them equal (or choose init 'random')."
        )
    return cast(Params, _module(config).init(key, jnp.zeros((1, dimension), jnp.float32)))


@jax.jit
def project(params: Params, embeddings: Array, config: ContrastiveConfig) -> Array:
    """Map embeddings [..., d] through a trained head to features z [..., outputs].

    With normalise "both" (the default) |z| = 1, which keeps the paper's assumption |x| <= 1.
    """
    z = _forward(params, embeddings, config)
    return unit(z) if config.normalise == "both" else z


def _total_loss(params: Params, x: Array, pairs: Pairs, config: ContrastiveConfig) -> Array:
    z = _forward(params, x, config)
    z = z if config.normalise == "none" else unit(z)
    return jnp.sum(info_nce(z, pairs, config.temperature))


@jax.jit
def fit(
    key: Array,
    embeddings: Array,
    utilities: Array,
    config: ContrastiveConfig,
    available: Array | None = None,
) -> tuple[Params, History]:
    """Train one head: a pure function of (key, data), so `vmap` trains all seeds' heads at once.

    Algorithm 3 on a model-balanced sample: each epoch is one gradient step on the sum of the losses
    of the queries that have a positive and a negative.

    Args:
        key: Random key of the sample, the initial weights and the minibatches.
        embeddings: [n, d] frozen encoder outputs.
        utilities: [n, N] perf - rho * cost.
        config: Settings.
        available: [n] bool, the prompts of the offline split; None: all. No other row is read
            into the sample, which lets seeds share one embedding array.

    Returns:
        The parameters and the `History`.

    Raises:
        ValueError: If the shapes do not fit together, or "mirror" does not fit the dimension.
    """
    _check_shapes(embeddings, utilities, available)
    key_sample, key_init, key_epochs = jax.random.split(key, 3)
    sample = balanced_sample(key_sample, utilities, config.prompts_per_model, available)
    # Padded slots point at rows of others, which may be missing (nan): they are blanked.
    real = sample.mask[:, None]
    x = jnp.where(real, embeddings[sample.rows].astype(jnp.float32), 0.0)
    u = jnp.where(real, utilities[sample.rows], 0.0)
    mask, cosine = sample.mask & has_preference(u), utility_cosine(u)
    optimiser = _optimiser(config)
    params = init_head(key_init, x.shape[1], config)

    def step(carry: tuple[Params, Any], key: Array) -> tuple[tuple[Params, Any], History]:
        params, state = carry
        slots, valid = minibatch(key, mask, config.prompts_per_epoch)
        pairs = select_pairs(
            cosine[slots[:, None], slots[None, :]],
            config.iota_pos, config.iota_neg, config.negatives, valid,
        )  # fmt: skip

        loss, gradient = jax.value_and_grad(_total_loss)(params, x[slots], pairs, config)
        # Adam's bias correction mixes integers and floats, which strict promotion refuses.
        with jax.numpy_dtype_promotion("standard"):
            updates, state = optimiser.update(gradient, state, params)
        used = jnp.sum(pairs.used, dtype=jnp.int32)
        mean = loss / jnp.maximum(used, 1).astype(loss.dtype)
        return (cast(Params, optax.apply_updates(params, updates)), state), History(mean, used)

    keys = jax.random.split(key_epochs, config.epochs)
    (params, _), history = jax.lax.scan(step, (params, optimiser.init(params)), keys)
    return params, history


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
        embeddings: [n, d] of every prompt of the table.
        utilities: [n, N] of every prompt of the table.
        available: [S, n] bool, each seed's offline split.
        config: Settings, the same for all seeds.

    Returns:
        Parameters and history with a leading axis S.

    Raises:
        ValueError: If a seed's split is empty, a value in it is missing, or no query of a seed had
            a positive and a negative at any epoch, so that nothing was learnt.
    """
    if available.shape != (len(keys), len(embeddings)):
        raise ValueError(
            f"available has shape {available.shape}; {len(keys)} seeds and {len(embeddings)} "
            f"prompts need ({len(keys)}, {len(embeddings)})."
        )
    for seed, split in enumerate(available):
        if not split.any():
            raise ValueError(f"the offline split of seed {seed} is empty; the head has no prompts.")
    needed = available.any(axis=0)
    for name, values in (("embeddings", embeddings), ("utilities", utilities)):
        bad = needed & ~np.isfinite(values).all(axis=1)
        if bad.any():
            raise ValueError(
                f"{name} row {int(np.argmax(bad))} has a missing or infinite value; the offline "
                "split must be complete."
            )
    mapped = jax.jit(jax.vmap(fit, in_axes=(0, None, None, None, 0)))
    with jax.enable_x64(False):  # in 64 bits AdamW rounds otherwise
        params, history = mapped(
            keys, jnp.asarray(embeddings, jnp.float32), jnp.asarray(utilities, jnp.float32),
            config, jnp.asarray(available),
        )  # fmt: skip
    silent = np.asarray(history.used).sum(axis=1) == 0
    if silent.any():
        raise ValueError(
            f"the head of seed {int(np.argmax(silent))} learnt nothing: with iota_pos="
            f"{config.iota_pos} and iota_neg={config.iota_neg} no prompt has a positive and "
            "a negative."
        )
    return params, history


def _check_shapes(embeddings: Array, utilities: Array, available: Array | None) -> None:
    if embeddings.ndim != 2 or utilities.ndim != 2 or len(embeddings) != len(utilities):
        raise ValueError(
            f"embeddings {embeddings.shape} and utilities {utilities.shape} must be [n, d] and "
            "[n, N] with the same n."
        )
    if available is not None and available.shape != utilities.shape[:1]:
        raise ValueError(
            f"available has shape {available.shape}; it must be {utilities.shape[:1]}."
        )


def _save(file: IO[bytes], head: Head) -> None:
    settings = {k: v for k, v in dataclasses.asdict(head.config).items() if v is not None}
    params = jax.tree.map(np.asarray, head.params)
    content = {"format": FORMAT, "config": settings, "params": params}
    file.write(flax.serialization.msgpack_serialize(content))


def _load(path: pathlib.Path) -> Head:
    content = flax.serialization.msgpack_restore(path.read_bytes())
    if content["format"] != FORMAT:
        raise ValueError(f"heads of format {content['format']}, this version reads {FORMAT}")
    return Head(content["params"], ContrastiveConfig(**content["config"]))


# Heads (one, or stacked over seeds) and their settings: flax's msgpack keeps every bit.
HEADS = FileFormat(".msgpack", _save, _load)
