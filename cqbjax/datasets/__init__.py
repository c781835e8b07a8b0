"""Host side: routing datasets read, checked and normalised into one `RoutingTable`.

Each module imports only those before it, and `tests/test_layers.py` keeps it so::

    table                       what every dataset becomes: prompts x servers, a score and a cost
    utility rates splits        what is computed from a table
    readers/                    one schema each, and embeddings as a file
    catalogue                   the datasets by name
    cache                       what was built, kept by content
    load                        a dataset by its name: table and embeddings, row for row
    source                      a source of the simulator, made from a loaded dataset
    fetch embedding             files from the hub or a path; the encoder
    prepare                     all of it, once: get, verify, read, embed, keep
"""

from cqbjax.datasets.catalogue import CATALOGUE, Dataset, dataset, own_table
from cqbjax.datasets.load import load_dataset
from cqbjax.datasets.rates import Served, rates_by_rule, served_rates
from cqbjax.datasets.readers.compact import read_compact
from cqbjax.datasets.readers.embedllm import read_embedllm
from cqbjax.datasets.readers.routerbench import read_routerbench
from cqbjax.datasets.readers.sprout import read_sprout
from cqbjax.datasets.source import DatasetSource, dataset_source
from cqbjax.datasets.splits import Split, check_no_leak, split, without_twins
from cqbjax.datasets.table import Dropped, RoutingTable, TableError, check_table, complete, take
from cqbjax.datasets.utility import (
    COST_RULES,
    DEFAULT_COST_RULE,
    departure_probabilities,
    mnl_utilities,
    normalise_cost,
    raw_utility,
)

__all__ = [
    "CATALOGUE", "COST_RULES", "DEFAULT_COST_RULE", "Dataset", "Dropped", "DatasetSource",
    "RoutingTable", "Served", "Split", "TableError", "check_no_leak", "check_table", "complete",
    "dataset", "departure_probabilities", "load_dataset", "mnl_utilities",
    "normalise_cost", "own_table", "rates_by_rule", "raw_utility", "read_compact", "read_embedllm",
    "read_routerbench", "read_sprout", "dataset_source", "served_rates", "split", "take",
    "without_twins",
]  # fmt: skip
