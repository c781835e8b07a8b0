"""The paper's printed numbers, beside ours wherever both have the same setting."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import xarray as xr

from cqbjax.core.labels import PAPER, PAPER_DATASETS

# The paper's tables, long: dataset, K, arrival_rate, round, policy, statistic and value.
TABLES = Path(__file__).resolve().parent / "printed.csv"
# The setting of the paper's synthetic table, which its rows do not repeat.
SYNTHETIC = {"num_servers": 5, "slackness": 0.03, "parameters": "disjoint"}
_POLICIES = {"RAND": "random", "ACQB-RAND": "acqb_random"}
_KEYS = ("dataset", "K", "arrival_rate", "round", "policy")
_PREFIX = "paper_"


def read(path: Path = TABLES) -> pl.DataFrame:
    """Return the paper's tables, with our labels of policies.

    Raises:
        ValueError: the file is missing or lacks a column.
    """
    if not path.is_file():
        raise ValueError(f"{path} is missing: it should hold the paper's tables.")
    rows = pl.read_csv(path, infer_schema_length=None)
    for column in (*_KEYS, "statistic", "value"):
        if column not in rows.columns:
            raise ValueError(f"{path} lacks column {column}: it has {', '.join(rows.columns)}.")
    theirs = rows["policy"].unique().to_list()
    ours = {name: _POLICIES.get(name, name.lower().replace("-", "_")) for name in theirs}
    return rows.with_columns(pl.col("policy").replace(ours))


def add_columns(
    table: pl.DataFrame, datasets: Mapping[str, str], path: Path = TABLES
) -> pl.DataFrame:
    """Add the paper's numbers, `paper_<statistic>`, wherever it reports the same setting.

    Empty columns are omitted. Rows match by dataset, K, arrival rate, round and policy, and for
    synthetic data by the paper's N, slackness and parameters. A column of the paper's follows the
    interval of ours.

    Args:
        table: from `throughput_table` or `gap_table`.
        datasets: our `source` -> the paper's dataset beside it: from `match_datasets`.
        path: the paper's tables.

    Raises:
        ValueError: the file is missing or lacks a column.
    """
    rows = read(path).filter(pl.col("statistic").is_in(table.columns))
    rows = rows.with_columns(statistic=_PREFIX + pl.col("statistic"))
    wide = rows.pivot("statistic", index=list(_KEYS), values="value")
    matched = [_match_row(row, datasets) for row in table.iter_rows(named=True)]
    # Rates are compared as millionths: 0.1 + 0.6 is the paper's 0.7.
    millionths = (pl.col("arrival_rate") * 1e6).round().cast(pl.Int64)
    joined = table.with_columns(pl.Series("dataset", matched, pl.String), rate=millionths).join(
        wide.with_columns(rate=millionths).drop("arrival_rate"),
        on=["dataset", "K", "rate", "round", "policy"],
        how="left", maintain_order="left", validate="m:1",
    )  # fmt: skip
    ordered = list(table.columns)
    for column in wide.columns[len(_KEYS) :]:
        if not joined[column].is_null().all():
            ours = column.removeprefix(_PREFIX)
            last = f"{ours}_high" if f"{ours}_high" in ordered else ours
            ordered.insert(ordered.index(last) + 1, column)
    return joined.select(ordered)


def match_datasets(points: Sequence[xr.Dataset]) -> dict[str, str]:
    """Return our `source` -> the paper's dataset, for points on the paper's own data."""
    own = [str(one.attrs["source"]) for one in points if one.attrs["provenance"] == PAPER]
    return {source: PAPER_DATASETS[source.lower()] for source in own}


def _match_row(row: Mapping[str, Any], datasets: Mapping[str, str]) -> str | None:
    """Return the paper's dataset with the setting of a row; None if the paper has no such setting.

    A key that the table lacks has the paper's value; the paper has no other arrival processes.
    """
    dataset = datasets.get(str(row.get("source")))
    same = all(row.get(key) in (None, value) for key, value in SYNTHETIC.items())
    return None if row.get("arrivals") or (dataset == "Synthetic" and not same) else dataset
