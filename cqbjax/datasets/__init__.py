"""Routing datasets: read, checked, prepared, and made into a source of queries.

Each module imports only those before it, and `tests/test_layers.py` keeps it so::

    table                       the form of every dataset: prompts x servers, a score and a cost
    utility                     departure probabilities, utilities and arrival rates of a table
    readers/                    one schema each
    times                       delays and latencies, read from files
    embeddings                  embeddings, read from files or computed by the encoder
    catalogue                   the datasets by name
    cache                       prepared entries, and a dataset loaded by its name
    source                      a source of the simulator made from a dataset
    fetch                       files from the hub or from a path
    prepare                     all of it, once: fetch, verify, read, embed, cache
"""

from cqbjax.datasets.cache import load_dataset
from cqbjax.datasets.catalogue import CATALOGUE, Dataset, find_dataset, user_table
from cqbjax.datasets.readers.embedllm import read_embedllm
from cqbjax.datasets.readers.parquet_csv import read_compact
from cqbjax.datasets.readers.routerbench import read_routerbench
from cqbjax.datasets.readers.sprout import read_sprout
from cqbjax.datasets.source import (
    DatasetSource,
    Split,
    check_no_leak,
    dataset_source,
    drop_pool_texts,
    split,
)
from cqbjax.datasets.table import (
    RoutingTable,
    TableError,
    check_table,
    drop_missing,
    take,
)
from cqbjax.datasets.utility import (
    COST_RULES,
    DEFAULT_COST_RULE,
    ServedRates,
    choose_arrival_rates,
    departure_probabilities,
    mnl_utilities,
    normalise_cost,
    raw_utility,
    served_rates,
)

__all__ = [
    "CATALOGUE", "COST_RULES", "DEFAULT_COST_RULE", "Dataset", "DatasetSource", "RoutingTable",
    "ServedRates", "Split", "TableError", "check_no_leak", "check_table",
    "choose_arrival_rates", "dataset_source", "departure_probabilities", "drop_missing",
    "drop_pool_texts", "find_dataset", "load_dataset", "mnl_utilities", "normalise_cost",
    "raw_utility", "read_compact", "read_embedllm", "read_routerbench", "read_sprout",
    "served_rates", "split", "take", "user_table",
]  # fmt: skip
