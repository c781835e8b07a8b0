"""What a replay is made of: each conversation's context and numbers, and each run's arrivals."""

import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax.core.code import digest
from cqbjax.core.files import memo
from cqbjax.core.types import LONG_WAIT
from cqbjax.logs.linking import Chains, subsample
from cqbjax.logs.prepare import Log
from cqbjax.logs.shards import LogError

# 32 coordinates of the prompt (the paper's), then the state of the chain.
PROMPT_DIM = 32
BLOCK = 65_536  # embeddings in float64 at once
STATE = ("constant", "attempts", "rounds in system", "prompt length")
DIM = PROMPT_DIM + len(STATE)
AGE_COLUMN = PROMPT_DIM + STATE.index("rounds in system")


def contexts(log: Log, chains: Chains, attempts: np.ndarray) -> Array:
    """Return what a policy sees of each conversation, none longer than one: [n, 36].

    Half of the squared length is the projected prompt's, half that of the state of the chain:
    a constant, a / (1 + a) of a attempts so far, the logarithms of the rounds in the system (here
    1, which the round multiplies: `Problem.age_column`) and of the prompt's tokens. All are known
    to a scheduler when it decides.

    Args:
        log: prepared.
        chains: linked.
        attempts: [n] int64 conversations of the chain before each one.
    """
    frame = log.frame[chains.members]
    asked = np.log1p(frame["prompt_tokens"].to_numpy()) / np.log1p(LONG_WAIT)
    served = jnp.asarray(attempts, float)
    one = jnp.ones_like(served)
    state = jnp.stack([one, served / (1 + served), one, jnp.asarray(asked, float)], axis=-1)
    prompts = jnp.asarray(_projected(log), float)[frame["text"].to_numpy()]
    return jnp.sqrt(0.5) * jnp.concatenate([prompts, 0.5 * state], axis=-1)


def _projected(log: Log) -> np.ndarray:
    """Return [texts, 32] the projected prompts, once for each log; zeros where none is embedded."""
    vectors = log.embeddings
    if vectors is None:
        return np.zeros((log.reading.texts, PROMPT_DIM))
    file = log.folder / f"projected-{digest([__name__])}.npy"
    return np.asarray(memo(file, lambda: project(vectors)))


def tokens(log: Log, chains: Chains) -> np.ndarray:
    """Return the tokens of each conversation's first response: [n]."""
    return log.frame[chains.members]["tokens"].to_numpy()


def planted(log: Log, chains: Chains, singles: float | None = None) -> np.ndarray:
    """Return the chance that each conversation satisfies, of a generated log: [n].

    Args:
        log: prepared.
        chains: linked.
        singles: the share of singletons after `subsample`, to which the chances are adjusted:
            fewer first conversations are the only ones. None leaves them as planted.
    """
    chance = log.frame[chains.members]["planted"].fill_null(0.0).to_numpy().copy()
    if singles is not None:
        kept = kept_singles(chains.lengths, singles)
        roots = chains.first[:-1]
        once = kept * chance[roots]
        chance[roots] = once / (once + 1 - chance[roots])
    return chance


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
    # In blocks: of a large log the float64 copy would be the largest thing in memory.
    blocks = [embeddings[i : i + BLOCK] for i in range(0, len(embeddings), BLOCK)]
    moment = sum(whole.T @ whole for whole in (block.astype(np.float64) for block in blocks))
    _, directions = np.linalg.eigh(moment)
    along = directions[:, ::-1][:, :dim]
    # A direction has two signs: the one whose largest component is positive is taken.
    largest = np.abs(along).argmax(axis=0)
    along = along * np.sign(along[largest, np.arange(along.shape[1])])
    made = np.concatenate([block.astype(np.float64) @ along for block in blocks])
    return np.pad(made, ((0, 0), (0, dim - made.shape[1])))


def draw(
    seed: int, arrivals: np.ndarray, chains: Chains, rate: float, horizon: int, singles: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return a run's chains: which singletons are kept, and in which round each root arrives.

    The span from the first root to the last is cut into rounds of equal length, so many that `rate`
    roots fall into one on average; several may fall into one.

    Args:
        seed: of the subsample.
        arrivals: [m] int64 inferred arrival of each chain's root, microseconds.
        chains: linked.
        rate: roots a round.
        horizon: T, rounds.
        singles: see `subsample`.

    Returns:
        The chains that arrive by round T in their order, and each one's round, from 1.

    Raises:
        LogError: a number is out of range, or the log has too few chains for the horizon.
    """
    if not 0 < rate <= 1:
        raise LogError(f"arrival_rate={rate:g} must lie in (0, 1] chains a round.")
    kept = subsample(chains.lengths, singles, np.random.default_rng([seed, 15]))
    times = arrivals[kept]
    rounds = int(len(kept) / rate)
    if horizon > rounds:
        raise LogError(
            f"horizon={horizon:,} is too long: {len(kept):,} chains at arrival_rate={rate:g} are "
            f"{rounds:,} rounds."
        )
    span = max(1, int(times[-1] - times[0]))
    each = np.minimum(1 + ((times - times[0]) / span * rounds).astype(np.int64), rounds)
    return kept[each <= horizon], each[each <= horizon]


def placed(
    rows: np.ndarray, rounds: np.ndarray, horizon: int, most: int
) -> tuple[np.ndarray, np.ndarray]:
    """Put what arrives into its rounds.

    Args:
        rows: [m] in the order of arrival.
        rounds: [m] each one's round, from 1, not decreasing.
        horizon: T.
        most: A, at least as many as come in any round.

    Returns:
        The rows [T, A] of each round in their order, and how many there are [T].
    """
    counts = np.bincount(rounds - 1, minlength=horizon)
    before = np.cumsum(counts) - counts
    made = np.zeros((horizon, most), np.int64)
    made[rounds - 1, np.arange(len(rows)) - before[rounds - 1]] = rows
    return made, counts
