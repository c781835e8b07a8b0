"""Training data of the contrastive head: settings, sample, pairs and loss of Algorithm 3.

Axis letters: n offline prompts (or sampled slots), N servers, C the cap on negatives. Every
function is pure and of fixed shape, so that it can be jitted, differentiated and mapped over seeds.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax import Array

from cqbjax.core.inputs import check_interval
from cqbjax.core.pytree import pytree, static

Params = dict[str, Array]
# Below this squared length a centred utility vector is the rounding error of a flat one.
FLAT_SQUARED_NORM = 1e-12


@pytree
class ContrastiveConfig:
    """Settings of the contrastive head; floats are traced (sweepable), the rest is static.

    `conf/head` has them by dataset; the defaults are RouterBench's.

    Attributes:
        iota_pos: Utility cosine above which two prompts attract each other.
        iota_neg: Utility cosine below which they repel each other.
        temperature: tau_temp of the InfoNCE loss.
        learning_rate: AdamW's step size.
        weight_decay: AdamW's decoupled weight decay.
        negatives: Maximum number of hard negatives per prompt (K_neg).
        prompts_per_model: Prompts drawn for each server by `draw_balanced_sample`.
        prompts_per_epoch: Prompts in one epoch's gradient step; None: the whole sample.
        epochs: Gradient steps (Algorithm 3 takes one per epoch).
        hidden: Width of the hidden layer.
        outputs: Dimension of z.

    Raises:
        ValueError: If a setting is out of range; the sentence names it.
    """

    iota_pos: float = 0.5
    iota_neg: float = 0.3
    temperature: float = 0.07
    learning_rate: float = 3e-4
    weight_decay: float = 0.0
    negatives: int = static(default=64)
    prompts_per_model: int = static(default=5)
    prompts_per_epoch: int | None = static(default=None)
    epochs: int = static(default=10)
    hidden: int = static(default=384)
    outputs: int = static(default=384)

    def __post_init__(self) -> None:
        """Check the settings."""
        sizes = "negatives", "prompts_per_model", "epochs", "hidden", "outputs"
        check_interval(self, "[1, inf)", *sizes, whole=True)
        if self.prompts_per_epoch is not None:  # a prompt, its positive and a negative
            check_interval(self, "[3, inf)", "prompts_per_epoch", whole=True)
        check_interval(self, "(0, inf)", "temperature", "learning_rate")
        check_interval(self, "[0, inf)", "weight_decay")
        check_interval(self, "[-1, 1)", "iota_neg")
        check_interval(self, f"[{float(self.iota_neg)}, 1)", "iota_pos")


class Sample(NamedTuple):
    """A model-balanced sample of prompts, padded to a fixed size.

    Attributes:
        rows: [N * per_model] int32, row of the prompt; slot j * per_model + i belongs to server j.
        mask: [N * per_model] bool, False if server j's group had fewer than per_model prompts.
    """

    rows: Array
    mask: Array


class Pairs(NamedTuple):
    """The positive and the hard negatives of each query.

    Attributes:
        positive: [n] int32, the most similar query above the positive threshold (0 if not used).
        negatives: [n, C] int32, the least similar queries below the negative threshold.
        negative_mask: [n, C] bool, False if there were fewer than C negatives.
        used: [n] bool, False if a query has no positive or no negative and is skipped.
    """

    positive: Array
    negatives: Array
    negative_mask: Array
    used: Array


def draw_balanced_sample(key: Array, utilities: Array, per_model: int, available: Array) -> Sample:
    """Draw up to `per_model` prompts, uniformly, from the prompts each server is best at.

    Ties for the best server go to the lower index. All prompts of a smaller group are drawn.

    Args:
        key: Random key; the sample is a function of it and of the data alone.
        utilities: [n, N] utility of each server for each prompt.
        per_model: Number of prompts per server.
        available: [n] bool, the prompts that may be drawn (the offline split).

    Returns:
        `Sample` of N * per_model slots.
    """
    n, servers = utilities.shape
    best = jnp.argmax(utilities, axis=1).astype(jnp.int32)
    best = jnp.where(available, best, jnp.int32(servers))
    # Sorting by (group, random number) shuffles within groups without an [N, n] array.
    order = jnp.lexsort((jax.random.uniform(key, (n,), jnp.float32), best)).astype(jnp.int32)
    count = jnp.bincount(best, length=servers + 1)[:servers].astype(jnp.int32)
    start = jnp.cumsum(count, dtype=jnp.int32) - count
    offset = jnp.arange(per_model, dtype=jnp.int32)[None, :]
    mask = (offset < count[:, None]).reshape(-1)
    rows = order[jnp.clip(start[:, None] + offset, 0, n - 1)].reshape(-1)
    return Sample(rows, mask)


def train_adamw(
    params: Params, loss: Callable[[Params, Array], tuple[Array, Any]], keys: Array,
    learning_rate: float | Array, weight_decay: float | Array,
) -> tuple[Params, Any]:  # fmt: skip
    """Take a step of AdamW per key.

    Args:
        params: where it starts.
        loss: function (parameters, key) -> (loss to differentiate, what to record of the step).
        keys: [steps] random keys.
        learning_rate: step size.
        weight_decay: decoupled weight decay.

    Returns:
        The parameters, and the records with a leading axis of steps.
    """
    import optax  # slow to import

    optimiser = optax.adamw(learning_rate, weight_decay=weight_decay)

    def step(carry: tuple[Params, Any], key: Array) -> tuple[tuple[Params, Any], Any]:
        params, state = carry
        (_, record), gradient = jax.value_and_grad(loss, has_aux=True)(params, key)
        # Adam's bias correction mixes integers and floats, which strict promotion refuses.
        with jax.numpy_dtype_promotion("standard"):
            updates, state = optimiser.update(gradient, state, params)
        return (cast(Params, optax.apply_updates(params, updates)), state), record

    (params, _), records = jax.lax.scan(step, (params, optimiser.init(params)), keys)
    return params, records


def draw_minibatch(key: Array, mask: Array, size: int | None) -> tuple[Array, Array]:
    """Choose `size` of the sampled slots for one epoch, real ones before padding.

    Args:
        key: Random key.
        mask: [n] bool, which slots hold a prompt.
        size: Number of slots per epoch; None or at least n: all of them, in order.

    Returns:
        Slots [m] int32 and their mask [m], m = min(size, n).
    """
    n = mask.shape[0]
    if size is None or size >= n:
        return jnp.arange(n, dtype=jnp.int32), mask
    order = jnp.lexsort((jax.random.uniform(key, (n,), jnp.float32), ~mask))[:size]
    return order.astype(jnp.int32), mask[order]


def utility_cosine(utilities: Array) -> Array:
    """Compute the cosine of mean-centred utility vectors (Algorithm 3, lines 2 and 3).

    Args:
        utilities: [n, N].

    Returns:
        [n, n] cosines; a flat row (all servers equal) has cosine 0 with every row.
    """
    centred = utilities - jnp.mean(utilities, axis=1, keepdims=True)
    squared = jnp.sum(centred**2, axis=1, keepdims=True)
    unit = centred * jax.lax.rsqrt(jnp.maximum(squared, FLAT_SQUARED_NORM))
    unit = jnp.where(squared > FLAT_SQUARED_NORM, unit, 0.0)
    return jnp.matmul(unit, unit.T, precision=jax.lax.Precision.HIGHEST)


def select_pairs(
    cosine: Array,
    iota_pos: float | Array,
    iota_neg: float | Array,
    cap: int,
    valid: Array,
) -> Pairs:
    """Select each query's best positive and hardest negatives (Algorithm 3, lines 5 to 7).

    P(i) = {j != i: c_ij > iota_pos}, N(i) = {j != i: c_ij < iota_neg}. The positive is the argmax
    of c over P(i); the negatives are the `cap` smallest c over N(i), the least similar in utility.
    Ties go to the lower index.

    Args:
        cosine: [n, n] utility cosines.
        iota_pos: Positive threshold.
        iota_neg: Negative threshold.
        cap: Maximum number of negatives per query (K_neg).
        valid: [n] bool; a query that is not valid is skipped, and is not used as a positive or
            negative.

    Returns:
        `Pairs` with C = min(cap, n).
    """
    n = cosine.shape[0]
    allowed = ~jnp.eye(n, dtype=bool) & valid[:, None] & valid[None, :]
    positives = jnp.where(allowed & (cosine > iota_pos), cosine, -jnp.inf)
    hardness, negatives = jax.lax.top_k(
        jnp.where(allowed & (cosine < iota_neg), -cosine, -jnp.inf), min(cap, n)
    )
    negative_mask = hardness > -jnp.inf
    has_positive = jnp.max(positives, axis=1) > -jnp.inf
    return Pairs(
        positive=jnp.argmax(positives, axis=1).astype(jnp.int32),
        negatives=negatives.astype(jnp.int32),
        negative_mask=negative_mask,
        used=has_positive & jnp.any(negative_mask, axis=1),
    )


def normalise(z: Array) -> Array:
    """Scale the last axis to length one; a zero vector stays zero, with a finite gradient."""
    return z * jax.lax.rsqrt(jnp.maximum(jnp.sum(z**2, axis=-1, keepdims=True), 1e-12))


def info_nce(z: Array, pairs: Pairs, temperature: float | Array) -> Array:
    """Compute the InfoNCE loss of each query with sim(z, z') = z'z (the paper's eq:infonce).

    Args:
        z: [n, d] representations.
        pairs: The pairs of these n queries.
        temperature: tau_temp.

    Returns:
        [n] losses in nats, 0 for a skipped query.
    """
    similarity = jnp.matmul(z, z.T, precision=jax.lax.Precision.HIGHEST) / temperature
    positive = jnp.take_along_axis(similarity, pairs.positive[:, None], axis=1)
    negative = jnp.take_along_axis(similarity, pairs.negatives, axis=1)
    # A skipped query keeps one finite logit, so that its (unused) gradient is never nan.
    logits = jnp.where(pairs.negative_mask, negative, -jnp.inf)
    total = jax.nn.logsumexp(jnp.concatenate([positive, logits], axis=1), axis=1)
    return jnp.where(pairs.used, total - positive[:, 0], 0.0)
