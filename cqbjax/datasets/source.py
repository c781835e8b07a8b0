"""A simulator source made from a routing dataset."""

import dataclasses
import pathlib

import jax.numpy as jnp

from cqbjax.datasets.catalogue import load_dataset
from cqbjax.datasets.table import RoutingTable
from cqbjax.datasets.utility import (
    DEFAULT_COST_RULE,
    Rates,
    departure_probabilities,
    mnl_utilities,
    service_rates,
)
from cqbjax.sources import Routing


@dataclasses.dataclass(frozen=True)
class RoutingSource:
    """A source and where it comes from.

    Attributes:
        source: prompts, embeddings [P, d] and true log-odds [P, N].
        table: the dataset behind it; its `stand_in` must be shown with every result.
        rates: what random, best fixed and per-prompt best routing serve at K = 1.
    """

    source: Routing
    table: RoutingTable
    rates: Rates


def routing_source(
    dataset: str,
    data_dir: str | pathlib.Path,
    pool_size: int = 1000,
    rho: float = 5.0,
    cost_rule: str = DEFAULT_COST_RULE,
    low: float = 0.1,
    high: float = 0.99,
) -> RoutingSource:
    """Load a dataset and turn performance and cost into departure probabilities.

    Args:
        dataset: a key of `CATALOGUE`.
        data_dir: the folder that holds `<dataset>/`.
        pool_size: prompts of a run's online pool.
        rho: weight of the normalised cost, u_raw = performance - rho * cost.
        cost_rule: one of `COST_RULES`.
        low: r_lo, the least departure probability.
        high: r_hi, the largest.

    Raises:
        ValueError: one sentence, for a missing folder or file, a bad table, or embeddings that do
            not fit it.
    """
    table, embeddings = load_dataset(dataset, data_dir)
    probabilities = departure_probabilities(
        table.performance, table.cost, rho=rho, low=low, high=high, cost_rule=cost_rule
    )
    source = Routing(
        contexts=jnp.asarray(embeddings, float),
        utilities=jnp.asarray(mnl_utilities(probabilities), float),
        pool_size=pool_size,
    )
    return RoutingSource(source, table, service_rates(probabilities))
