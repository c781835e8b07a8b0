"""The per-query log of a study with `queries=true`, as a table."""

from collections.abc import Sequence

import numpy as np
import polars as pl
import xarray as xr

from cqbjax.core.labels import SERVERS, split_names
from cqbjax.core.recorders.queries import OUTCOMES, query_columns
from cqbjax.results.summaries import find_differing

NAME = "queries"
WHOLE = ("arrival", "first_service", "departure", "attempts", "server", "prompt")


def tabulate_queries(points: Sequence[xr.Dataset]) -> pl.DataFrame:
    """Return a table with one row per query, for every policy, arrival rate and seed.

    Args:
        points: as `results.load_points` returns them, or `[data]` of one sweep.

    Returns:
        A column for each key in which points differ, and the columns

            - `arrival_rate`, `policy`, `seed`;
            - `query`: number of the query, from 0, increasing in the order of arrival; a round
              without an arrival skips a number;
            - `arrival`, `first_service`, `departure`: rounds, null if it has not happened yet;
            - `outcome`: `there` (still in the system), `satisfied` or `gave up`;
            - `attempts`: number of attempts that ended;
            - `server`: number of the LLM whose answer was accepted;
            - `llm`: its name; this column exists only if the source has names;
            - `dollars`: cost of all answers to the query in USD, null if the source has no costs;
            - `score`: score of the accepted answer, null if the source has no scores;
            - `prompt`: number of the prompt in the dataset.

    Raises:
        ValueError: a point has no per-query log.
    """
    for point in points:
        if NAME not in point:
            raise ValueError("points hold no rows of queries: run the study with queries=true.")
    frames, keys = [], find_differing(points)
    for point in points:
        log = point[NAME].transpose("arrival_rate", "policy", "seed", "query", "field")
        # Rows of actual queries.
        *runs, query = np.nonzero(~np.isnan(log.values[..., 0]))
        columns = pl.DataFrame(dict(query_columns(log.values[*runs, query]))).fill_nan(None)
        outcomes = pl.Series(OUTCOMES).gather(columns["outcome"].cast(pl.Int32))
        frame = columns.with_columns(
            pl.col(WHOLE).cast(pl.Int32), outcome=outcomes.cast(pl.Enum(OUTCOMES))
        )
        if servers := str(point.attrs.get(SERVERS, "")):
            names = pl.Series(split_names(servers)).gather(frame["server"])
            frame.insert_column(frame.get_column_index("server") + 1, names.alias("llm"))
        labels = zip(map(str, log.dims), runs, strict=False)
        frames.append(frame.select(
            *(pl.lit(point.attrs.get(key)).alias(key) for key in keys),
            *(pl.Series(dim, log[dim].values.tolist()).gather(run) for dim, run in labels),
            pl.Series("query", query, pl.Int32), pl.all(),
        ))  # fmt: skip
    return pl.concat(frames)
