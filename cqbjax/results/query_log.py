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
    frames, keys = list[pl.DataFrame](), find_differing(points)
    for point in points:
        varied = {key: point.attrs.get(key) for key in keys}
        for rate in point["arrival_rate"].values.tolist():
            for label in map(str, point["policy"].values):
                log = point[NAME].sel(arrival_rate=rate, policy=label)
                lead = {**varied, "arrival_rate": rate, "policy": label}
                frames.append(_tabulate_runs(log, lead, str(point.attrs.get(SERVERS, ""))))
    return pl.concat(frames)


def _tabulate_runs(log: xr.DataArray, lead: dict[str, object], servers: str) -> pl.DataFrame:
    """Return the rows of a policy: of its log [seed, T * A, field], those of actual queries."""
    stored = log.transpose("seed", "query", "field").values
    seed, number = np.nonzero(~np.isnan(stored[..., 0]))
    columns = pl.DataFrame(dict(query_columns(stored[seed, number]))).fill_nan(None)
    outcome = pl.Series(OUTCOMES).gather(columns["outcome"].cast(pl.Int32)).cast(pl.Enum(OUTCOMES))
    frame = columns.with_columns(pl.col(WHOLE).cast(pl.Int32), outcome=outcome)
    if servers:
        names = pl.Series(split_names(servers)).gather(frame["server"])
        frame.insert_column(frame.get_column_index("server") + 1, names.alias("llm"))
    return frame.select(
        *(pl.lit(value).alias(key) for key, value in lead.items()),
        pl.Series("seed", log["seed"].values[seed]), pl.Series("query", number, pl.Int32),
        pl.all(),
    )  # fmt: skip
