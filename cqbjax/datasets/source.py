"""A simulator source made from a routing dataset."""

import dataclasses
import functools
import pathlib
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from cqbjax.core.files import arrays_digest
from cqbjax.core.given import TableNames, is_number, is_whole
from cqbjax.core.types import Outcome
from cqbjax.datasets.load import load_dataset
from cqbjax.datasets.rates import Served, countable, served_rates
from cqbjax.datasets.splits import Split, check_no_leak, split, without_twins
from cqbjax.datasets.table import RoutingTable
from cqbjax.datasets.utility import (
    DEFAULT_COST_RULE,
    departure_probabilities,
    mnl_utilities,
    normalise_cost,
)
from cqbjax.sources import Routing


@dataclasses.dataclass(frozen=True)
class DatasetSource:
    """A dataset as a source of queries, with all that is known of it.

    Attributes:
        queries: what a sweep draws from: prompts, embeddings [P, d] and true log-odds [P, N].
        dataset: its key in the catalogue, or its own name.
        table: the dataset behind it; its `stand_in` must be shown with every result.
        probabilities: [P, N] departure probabilities of single servers.
        cost: [P, N] cost normalised to [0, 1].
        rho: weight of the cost in the utility performance - rho * cost.
        offline_size: most prompts of a seed's offline split; None is all the rest.
    """

    queries: Routing
    dataset: str
    table: RoutingTable
    probabilities: np.ndarray
    cost: np.ndarray
    rho: float
    offline_size: int | None = None
    _served: dict[int, Served] = dataclasses.field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _splits: dict[int, Split] = dataclasses.field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def embeddings(self) -> np.ndarray:
        """Return the prompts' embeddings, [P, d] float32."""
        return np.asarray(self.queries.contexts, np.float32)

    @functools.cached_property
    def digest(self) -> str:
        """Return a hash of embeddings, performance and cost, by which fits are kept."""
        return arrays_digest([self.embeddings, self.table.performance, self.cost])

    @functools.cached_property
    def departure_digest(self) -> str:
        """Return a hash of departure probabilities, which low, high and rho shape, and costs."""
        return arrays_digest([self.probabilities, self.table.cost])

    def served(self, assortment_size: int) -> Served:
        """Return what routing without learning can serve with K servers an assortment."""
        if assortment_size not in self._served:
            # Every assortment of every prompt is gone through: seconds at N = 112, K = 2.
            self._served[assortment_size] = served_rates(self.probabilities, assortment_size)
        return self._served[assortment_size]

    def describe(self, assortment_size: int, arrival_rates: Sequence[float]) -> str:
        """Say what the dataset is, what fixed routing serves there, and at which rates it runs."""
        table = self.table
        marked = f" ({table.stand_in})" if table.stand_in else ""
        name = f"{table.name}{marked}: {table.num_prompts:,} prompts, {table.num_servers} LLMs"
        if not countable(table.num_servers, assortment_size):
            return f"{name}; K={assortment_size} has too many assortments to try each"
        served = self.served(assortment_size)
        best = " + ".join(table.servers[j] for j in served.best_assortment)
        rates = ", ".join(f"{rate:g}" for rate in arrival_rates)
        return (
            f"{name}; with K={assortment_size} and retrials random routing serves "
            f"{served.random:.3f} queries a round, the best fixed choice {served.best_fixed:.3f} "
            f"({best}), the best of each prompt {served.oracle:.3f}; arrival rates {rates}"
        )

    def split(self, seed: int) -> Split:
        """Return a seed's online pool, the one its runs draw, and its offline split.

        Raises:
            ValueError: the pool leaves no prompt, or an evaluation prompt leaked into the split.
        """
        if seed not in self._splits:
            self._splits[seed] = self._split(seed)
        return self._splits[seed]

    def _split(self, seed: int) -> Split:
        parts = split(self.table.num_prompts, self.queries.pool_size, seed)
        parts = without_twins(parts, self.table.prompts)
        size = self.offline_size
        if size is not None and size < len(parts.offline):
            chosen = np.random.default_rng(seed).permutation(len(parts.offline))[:size]
            parts = parts._replace(offline=parts.offline[np.sort(chosen)])
        check_no_leak(parts.pool, parts.offline, self.table.prompt_ids, self.table.prompts)
        return parts


def dataset_source(
    dataset: str,
    data_dir: str | pathlib.Path,
    pool_size: int = 1000,
    rho: float = 5.0,
    cost_rule: str = DEFAULT_COST_RULE,
    low: float = 0.1,
    high: float = 0.99,
    offline_size: int | None = None,
    min_max: bool = True,
    repeats: bool = True,
    outcome: Outcome = "attempt",
) -> DatasetSource:
    """Load a dataset and turn performance and cost into departure probabilities.

    Args:
        dataset: a key of `CATALOGUE`, or the name of a user's own prepared table.
        data_dir: the folder that holds `<dataset>/`.
        pool_size: prompts of a run's online pool.
        rho: weight of the normalised cost, u_raw = performance - rho * cost.
        cost_rule: one of `COST_RULES`.
        low: r_lo, the least departure probability.
        high: r_hi, the largest.
        offline_size: most prompts of a seed's offline split, drawn by the seed; None is all that
            the pool leaves.
        min_max: whether performance less cost is stretched to [low, high] over each prompt's
            servers, as in the paper.
        repeats: as in `Routing`.
        outcome: as in `Routing`.

    Raises:
        ValueError: one sentence, for a missing folder or file, a bad table, or embeddings that do
            not fit it.
    """
    if not isinstance(dataset, str) or not dataset:
        raise ValueError(f"dataset={dataset} must be the name of a dataset")
    if not isinstance(data_dir, str | pathlib.Path):
        raise ValueError(f"data_dir={data_dir} must be a folder")
    if offline_size is not None and (not is_whole(offline_size) or offline_size < 1):
        raise ValueError(
            f"offline_size={offline_size} must be a whole number, at least 1, or null for all"
        )
    if not is_whole(pool_size) or pool_size < 1:
        raise ValueError(f"pool_size={pool_size} must be a whole number, at least 1")
    for key, value in (("rho", rho), ("low", low), ("high", high)):
        if not is_number(value):
            raise ValueError(f"{key}={value} must be a number")
    for key, value in (("min_max", min_max), ("repeats", repeats)):
        if not isinstance(value, bool):
            raise ValueError(f"{key}={value} must be true or false")
    table, embeddings = load_dataset(dataset, data_dir)
    probabilities = departure_probabilities(
        table.performance, table.cost, rho, low, high, cost_rule, min_max=min_max
    )
    queries = Routing(
        contexts=jnp.asarray(embeddings, float),
        utilities=jnp.asarray(mnl_utilities(probabilities), float),
        pool_size=pool_size,
        dollars=jnp.asarray(table.cost, float),
        scores=jnp.asarray(table.performance, float),
        repeats=repeats,
        outcome=outcome,
        names=TableNames(table.prompt_ids, table.servers, f"dataset {dataset}"),
    )
    cost = normalise_cost(table.cost, cost_rule)
    return DatasetSource(queries, dataset, table, probabilities, cost, rho, offline_size)
