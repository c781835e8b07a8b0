"""A simulator source made from a routing dataset: online pools and offline splits by seed."""

import dataclasses
import functools
import math
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cqbjax.core import rng
from cqbjax.core.files import arrays_digest
from cqbjax.core.inputs import TableNames, is_integer, is_number
from cqbjax.core.types import Outcome
from cqbjax.datasets import utility
from cqbjax.datasets.cache import load_dataset
from cqbjax.datasets.catalogue import CATALOGUE
from cqbjax.datasets.table import RoutingTable
from cqbjax.sources import PromptPool
from cqbjax.sources.prompt_pool import draw_pool

# How utilities follow from scores and costs by default: in the paper's appendix, and of a user's
# table, where a wrong answer must not satisfy.
PAPER_RECIPE: dict[str, Any] = {"rho": 5.0, "low": 0.1, "min_max": True}
USER_RECIPE: dict[str, Any] = {"rho": 0.0, "low": 0.01, "min_max": False}
LARGEST_POOL = 1000  # of the default

# One program for all seeds: operation by operation a pool takes ten times as long.
_draw_pool = jax.jit(draw_pool, static_argnums=(1, 2))


class Split(NamedTuple):
    """Row indices of a table.

    Attributes:
        pool: [pool_size] rows of the online pool, in drawn order.
        offline: [P - pool_size], or fewer, rows for offline training, ascending.
    """

    pool: np.ndarray
    offline: np.ndarray


def split(num_prompts: int, pool_size: int = 1000, seed: int = 0) -> Split:
    """Draw the online pool of a run; the offline split is every other prompt.

    The pool is the one that the simulator draws for this seed. The result depends on the three
    arguments alone: not on the table's content, the policy or the number of seeds.

    Args:
        num_prompts: P.
        pool_size: prompts of the online pool, at least 1 and less than P.
        seed: not negative.

    Returns:
        Disjoint rows that together are 0 .. P-1.

    Raises:
        ValueError: pool_size or seed is out of range.
    """
    if not 1 <= pool_size < num_prompts:
        raise ValueError(
            f"pool_size must be in [1, {num_prompts - 1}], less than all prompts, got {pool_size}."
        )
    if seed < 0:
        raise ValueError(f"seed must not be negative, got {seed}.")
    pool = np.asarray(_draw_pool(rng.run_key(seed), num_prompts, pool_size))
    return Split(pool=pool, offline=np.setdiff1d(np.arange(num_prompts), pool))


def drop_pool_texts(parts: Split, prompts: Sequence[str]) -> Split:
    """Drop offline prompts whose text also occurs in the pool.

    Some texts occur under several ids (159 prompts in MMLU-Pro, 2 in RouterBench). If these prompts
    were kept, a router could be trained on a text on which it is evaluated.

    Args:
        parts: rows of the table.
        prompts: [P] texts.
    """
    pool = {prompts[i].strip() for i in parts.pool}
    others = np.array([prompts[i].strip() not in pool for i in parts.offline], bool)
    return parts._replace(offline=parts.offline[others])


def check_no_leak(parts: Split, prompt_ids: Sequence[str], prompts: Sequence[str]) -> None:
    """Check that no offline prompt is in the online pool by row, by id or by text.

    Args:
        parts: rows of the table.
        prompt_ids: [P].
        prompts: [P] texts, compared without white space at the ends.

    Raises:
        ValueError: naming the first leaked prompt and how it leaked.
    """
    rows = set(parts.pool.tolist())
    ids = {prompt_ids[i] for i in rows}
    texts = {prompts[i].strip(): i for i in rows}
    for i in parts.offline.tolist():
        same = texts.get(prompts[i].strip())
        if i in rows or prompt_ids[i] in ids:
            how = "is itself in the online pool"
        elif same is not None:
            how = f"has the same text as pool row {same} (prompt id {prompt_ids[same]!r})"
        else:
            continue
        raise ValueError(f"offline split: row {i} (prompt id {prompt_ids[i]!r}) {how}.")


@dataclasses.dataclass(frozen=True)
class DatasetSource:
    """A dataset as a source of queries.

    Attributes:
        queries: source of a sweep: prompts, embeddings [P, d] and true log-odds [P, N].
        dataset: key in the catalogue, or name of a user's table.
        table: the dataset; every result shows its `proxy_note`.
        probabilities: [P, N] departure probabilities of single servers.
        cost: [P, N] cost normalised to [0, 1].
        rho: weight of the cost in the utility performance - rho * cost.
        offline_size: largest size of a seed's offline split; None: all prompts outside the pool.
    """

    queries: PromptPool
    dataset: str
    table: RoutingTable
    probabilities: np.ndarray
    cost: np.ndarray
    rho: float
    offline_size: int | None = None
    _cached: dict[tuple[str, int], Any] = dataclasses.field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @functools.cached_property
    def embeddings(self) -> np.ndarray:
        """Embeddings of the prompts, [P, d] float32."""
        return np.asarray(self.queries.contexts, np.float32)

    @functools.cached_property
    def digest(self) -> str:
        """Hash of the numbers of the dataset, part of the cache keys of fits and results."""
        table = self.table
        arrays = self.embeddings, table.performance, table.cost, self.cost, self.probabilities
        return arrays_digest(arrays)

    def served(self, K: int) -> utility.ServedRates:
        """Return `served_rates` of K servers per assortment, computed once."""
        if ("served", K) not in self._cached:
            # Goes through every assortment of every prompt: seconds at N = 112, K = 2.
            self._cached["served", K] = utility.served_rates(self.probabilities, K)
        served: utility.ServedRates = self._cached["served", K]
        return served

    def describe(self, K: int, arrival_rates: Sequence[float]) -> str:
        """Describe the dataset, the rates that fixed routing serves, and the arrival rates."""
        table = self.table
        note = f" ({table.proxy_note})" if table.proxy_note else ""
        name = (
            f"{table.name}{note}: {table.num_prompts:,} prompts "
            f"({self.queries.pool_size:,} in the pool of a run), {table.num_servers} LLMs"
        )
        if math.comb(table.num_servers, K) > utility.MAX_ASSORTMENTS:
            return f"{name}; K={K} has too many assortments to try each"
        served = self.served(K)
        best = " + ".join(table.servers[j] for j in served.best_assortment)
        rates = ", ".join(f"{rate:g}" for rate in arrival_rates)
        return (
            f"{name}; with K={K} and retrials random routing serves "
            f"{served.random:.3f} queries a round, the best fixed choice {served.best_fixed:.3f} "
            f"({best}), the best of each prompt {served.oracle:.3f}; arrival rates {rates}"
        )

    def split(self, seed: int) -> Split:
        """Return a seed's online pool, from which its runs draw queries, and its offline split.

        Raises:
            ValueError: the pool leaves no prompt, or an evaluation prompt leaked into the split.
        """
        if ("split", seed) not in self._cached:
            table, size = self.table, self.offline_size
            parts = split(table.num_prompts, self.queries.pool_size, seed)
            parts = drop_pool_texts(parts, table.prompts)
            if size is not None and size < len(parts.offline):
                chosen = np.random.default_rng(seed).permutation(len(parts.offline))[:size]
                parts = parts._replace(offline=parts.offline[np.sort(chosen)])
            check_no_leak(parts, table.prompt_ids, table.prompts)
            self._cached["split", seed] = parts
        drawn: Split = self._cached["split", seed]
        return drawn


def dataset_source(
    dataset: str, data_dir: str | pathlib.Path, pool_size: int | None = None,
    rho: float | None = None, cost_rule: str = utility.DEFAULT_COST_RULE, low: float | None = None,
    high: float = 0.99, offline_size: int | None = None, min_max: bool | None = None,
    repeats: bool = True, outcome: Outcome = "attempt",
) -> DatasetSource:  # fmt: skip
    """Load a dataset and turn performance and cost into departure probabilities.

    Args:
        dataset: a key of `CATALOGUE`, or the name of a user's prepared table.
        data_dir: folder that holds `<dataset>/`.
        pool_size: prompts of a run's online pool; None: a third of the table, at most 1,000.
        rho: weight of the normalised cost, u_raw = performance - rho * cost; None: 5 (the paper),
            and 0 for a user's table, whose users do not see prices.
        cost_rule: one of `COST_RULES`.
        low: r_lo, the least departure probability; None: .1 (the paper), and .01 for a user's
            table, where a wrong answer must not satisfy.
        high: r_hi, the largest.
        offline_size: largest size of a seed's offline split, drawn by the seed; None: every prompt
            outside the pool.
        min_max: as in `departure_probabilities`; None: True (the paper), and False for a user's
            table.
        repeats: as in `sources.PromptPool`.
        outcome: as in `sources.PromptPool`.

    Raises:
        ValueError: one sentence, for a missing folder or file, an invalid table, or embeddings
            that do not fit it.
    """
    size = "a whole number, at least 1"
    recipe = PAPER_RECIPE if dataset in CATALOGUE else USER_RECIPE
    rho = recipe["rho"] if rho is None else rho
    low = recipe["low"] if low is None else low
    min_max = recipe["min_max"] if min_max is None else min_max
    for key, value, valid, allowed in (
        ("dataset", dataset, isinstance(dataset, str) and dataset, "the name of a dataset"),
        ("data_dir", data_dir, isinstance(data_dir, str | pathlib.Path), "a folder"),
        ("offline_size", offline_size,
         offline_size is None or (is_integer(offline_size) and offline_size >= 1),
         f"{size}, or null for all"),
        ("pool_size", pool_size,
         pool_size is None or (is_integer(pool_size) and pool_size >= 1),
         f"{size}, or null for a third of the table"),
        ("rho", rho, is_number(rho), "a number"),
        ("low", low, is_number(low), "a number"),
        ("high", high, is_number(high), "a number"),
        ("min_max", min_max, isinstance(min_max, bool), "true or false"),
        ("repeats", repeats, isinstance(repeats, bool), "true or false"),
    ):  # fmt: skip
        if not valid:
            raise ValueError(f"{key}={value} must be {allowed}")
    table, embeddings = load_dataset(dataset, data_dir)
    if pool_size is None:
        pool_size = max(1, min(table.num_prompts // 3, LARGEST_POOL))
    probabilities = utility.departure_probabilities(
        table.performance, table.cost, rho, low, high, cost_rule, min_max=min_max
    )
    queries = PromptPool(
        contexts=jnp.asarray(embeddings, float),
        utilities=jnp.asarray(utility.mnl_utilities(probabilities), float),
        pool_size=pool_size,
        dollars=jnp.asarray(table.cost, float),
        scores=jnp.asarray(table.performance, float),
        repeats=repeats,
        outcome=outcome,
        names=TableNames(table.prompt_ids, table.servers, f"dataset {dataset}"),
    )
    cost = utility.normalise_cost(table.cost, cost_rule)
    return DatasetSource(queries, dataset, table, probabilities, cost, rho, offline_size)
