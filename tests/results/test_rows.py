"""The table of queries beside rows written by hand."""

import numpy as np
import xarray as xr

from cqbjax.core.labels import SERVERS
from cqbjax.core.recorders.queries import FIELDS, GAVE_UP, SATISFIED, THERE
from cqbjax.results import query_log

NAN = np.nan


def test_query_table_has_seed_number_and_server_name():
    nobody = [NAN] * len(FIELDS)
    stored = [
        [[1, 2, 5, SATISFIED, 3, 1, 0.5, 0.25, 11], nobody,
         [3, NAN, NAN, THERE, 0, NAN, NAN, NAN, 12]],
        [nobody, [2, 3, 4, GAVE_UP, 1, NAN, 0.1, NAN, 13], nobody],
    ]  # fmt: skip
    dims = ("policy", "arrival_rate", "seed", "query", "field")
    point = xr.Dataset(
        {"queries": (dims, np.asarray(stored)[None, None])},
        {"policy": ["x"], "arrival_rate": [0.7], "seed": [4, 9]},
        {SERVERS: "small, large", "K": 1, "path": "p"},
    )
    tabulated = query_log.tabulate_queries([point]).drop("arrival_rate", "policy").rows(named=True)
    words = ("seed", "query", "arrival", "first_service", "departure", "outcome", "attempts",
             "server", "llm", "dollars", "score", "prompt")  # fmt: skip
    assert [tuple(row[word] for word in words) for row in tabulated] == [
        (4, 0, 1, 2, 5, "satisfied", 3, 1, "large", 0.5, 0.25, 11),
        (4, 2, 3, None, None, "there", 0, None, None, None, None, 12),
        (9, 1, 2, 3, 4, "gave up", 1, None, None, 0.1, None, 13),
    ]
    two = query_log.tabulate_queries([point, point.assign_attrs(K=2)])
    assert two["K"].to_list() == [1] * 3 + [2] * 3
