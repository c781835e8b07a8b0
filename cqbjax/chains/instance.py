"""What a replay runs on: the tables of a log, shared by all runs, and each run's own arrivals."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax.chains.linking import Chains, subsample
from cqbjax.chains.prepare import Log
from cqbjax.chains.shards import LogError
from cqbjax.core import rng

# 32 coordinates of the prompt (the paper's), then the state of the chain.
PROMPT_DIM = 32
STATE = ("constant", "attempts", "rounds in system", "prompt length")
DIM = PROMPT_DIM + len(STATE)
# Rounds, and tokens, whose logarithm counts as one.
LONG = 1e5


class Tables(NamedTuple):
    """A log's chains as arrays, the same for all runs.

    Attributes:
        first: [n] int32 first conversation of each chain, m in all; the others follow it.
        length: [n] int32 conversations of each chain: how often it has to be served.
        text: [n] int32 row in `prompts` of each conversation.
        tokens: [n] float of its first response, which SJF is told.
        prompt_length: [n] float log(1 + tokens of its prompt) / log(1 + LONG).
        planted: [n] float the chance that its user is satisfied, where it is known, else zero.
        prompts: [texts, 32] projected embeddings of the distinct first prompts.
    """

    first: Array
    length: Array
    text: Array
    tokens: Array
    prompt_length: Array
    planted: Array
    prompts: Array


class Run(NamedTuple):
    """One run's arrivals.

    Attributes:
        key: of the run, for what its policy draws.
        chains: [n] int32 the chains whose roots arrive, in order; padded to the log's length.
        until: [T + 1] int32 how many of them have arrived by the end of slot t.
    """

    key: Array
    chains: Array
    until: Array


def tables(log: Log, chains: Chains, singles: float | None = None) -> Tables:
    """Return the arrays of a log's chains.

    Args:
        log: prepared.
        chains: linked.
        singles: the share of singletons after `subsample`, to which planted chances are adjusted:
            fewer first conversations are the only ones. None leaves them as planted.
    """
    frame = log.frame[chains.members]
    asked = np.log1p(frame["prompt_tokens"].to_numpy()) / np.log1p(LONG)
    planted = np.zeros(len(frame))
    if "planted" in frame.columns:
        planted = frame["planted"].fill_null(0.0).to_numpy().copy()
        if singles is not None:
            kept = kept_singles(chains.lengths, singles)
            roots = chains.first[:-1]
            once = kept * planted[roots]
            planted[roots] = once / (once + 1 - planted[roots])
    # As long as the log, so that every linking rule's chains are of one shape, and one program.
    empty = len(frame) - len(chains.lengths)
    return Tables(
        first=jnp.asarray(np.pad(chains.first[:-1], (0, empty)), jnp.int32),
        length=jnp.asarray(np.pad(chains.lengths, (0, empty)), jnp.int32),
        text=jnp.asarray(frame["text"].to_numpy(), jnp.int32),
        tokens=jnp.asarray(frame["tokens"].to_numpy(), float),
        prompt_length=jnp.asarray(asked, float),
        planted=jnp.asarray(planted, float),
        prompts=jnp.asarray(project(log.embeddings), float),
    )


def kept_singles(lengths: np.ndarray, singles: float) -> float:
    """Return the share of singletons that `subsample` keeps."""
    alone, longer = int((lengths == 1).sum()), int((lengths > 1).sum())
    return min(1.0, longer * singles / (1 - singles) / max(alone, 1))


def project(embeddings: np.ndarray, dim: int = PROMPT_DIM) -> np.ndarray:
    """Return the coordinates of unit embeddings along their leading principal directions.

    The directions are those of the second moment of all prompts of the log, without centring, so
    that no projection is longer than its embedding. They see texts alone, nobody's retrials.

    Args:
        embeddings: [texts, d] unit vectors.
        dim: e; with fewer dimensions zeros follow.

    Returns:
        [texts, e].
    """
    whole = embeddings.astype(np.float64)
    _, directions = np.linalg.eigh(whole.T @ whole)
    along = directions[:, ::-1][:, :dim]
    # A direction has two signs: the one whose largest component is positive is taken.
    largest = np.abs(along).argmax(axis=0)
    along = along * np.sign(along[largest, np.arange(along.shape[1])])
    made = whole @ along
    return np.pad(made, ((0, 0), (0, dim - made.shape[1])))


def draw_run(
    seed: int, arrivals: np.ndarray, chains: Chains, rate: float, horizon: int, singles: float
) -> Run:
    """Return a run: which singletons are kept, and in which slot each root arrives.

    The span from the first root to the last is cut into slots of equal length, so many that `rate`
    roots fall into one on average; several may fall into one.

    Args:
        seed: of the subsample and of the policy's draws.
        arrivals: [m] int64 inferred arrival of each chain's root, microseconds.
        chains: linked.
        rate: roots a slot.
        horizon: T, slots.
        singles: see `subsample`.

    Raises:
        LogError: a number is out of range, or the log has too few chains for the horizon.
    """
    if not 0 < rate <= 1:
        raise LogError(f"arrival_rate={rate:g} must lie in (0, 1] chains a slot.")
    kept = subsample(chains.lengths, singles, np.random.default_rng([seed, 15]))
    times = arrivals[kept]
    slots = int(len(kept) / rate)
    if horizon > slots:
        raise LogError(
            f"horizon={horizon:,} is too long: {len(kept):,} chains at arrival_rate={rate:g} are "
            f"{slots:,} slots."
        )
    span = max(1, int(times[-1] - times[0]))
    slot = np.minimum(1 + ((times - times[0]) / span * slots).astype(np.int64), slots)
    until = np.searchsorted(slot, np.arange(horizon + 1), side="right")
    padded = np.pad(kept, (0, len(chains.members) - len(kept)))
    return Run(rng.run_key(seed), jnp.asarray(padded, jnp.int32), jnp.asarray(until, jnp.int32))


def stacked(runs: list[Run]) -> Run:
    """Return runs as one batch: every array with a leading [S]."""
    return jax.tree.map(lambda *parts: jnp.stack(parts), *runs)


def root_arrivals(log: Log, chains: Chains) -> np.ndarray:
    """Return the inferred arrival of each chain's root: [m] int64, microseconds."""
    return log.frame["arrival"].to_numpy()[chains.members[chains.first[:-1]]]
