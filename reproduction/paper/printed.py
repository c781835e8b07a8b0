"""The paper's own numbers, beside ours wherever it reports the same setting."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import xarray as xr

from cqbjax.core.labels import PAPERS, PAPERS_DATA

# The paper's tables, long: dataset, K, arrival_rate, round, policy, statistic and value.
TABLES = Path(__file__).resolve().parent / "printed.csv"
# The setting of the paper's synthetic table, which its rows do not repeat.
SYNTHETIC = {"num_servers": 5, "slackness": 0.03, "parameters": "disjoint"}
_POLICIES = {"RAND": "random", "ACQB-RAND": "acqb_random"}
_KEYS = ("dataset", "K", "arrival_rate", "round", "policy")
_PREFIX = "paper_"


def read(path: Path = TABLES) -> pl.DataFrame:
    """Return the paper's tables, policies by our labels.

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


def beside(table: pl.DataFrame, datasets: Mapping[str, str], path: Path = TABLES) -> pl.DataFrame:
    """Add the paper's own numbers, `paper_<statistic>`, wherever it reports the same setting.

    No column is added that would be empty. Matched are dataset, K, arrival rate, round and policy,
    and for synthetic data the paper's N, slackness and parameters.

    Args:
        table: from `throughput_table` or `gap_table`.
        datasets: our `source` to the dataset of the paper's that it is shown beside: `answered`.
        path: the paper's tables.

    Raises:
        ValueError: the file is missing or lacks a column.
    """
    rows = read(path).filter(pl.col("statistic").is_in(table.columns))
    rows = rows.with_columns(statistic=_PREFIX + pl.col("statistic"))
    wide = rows.pivot("statistic", index=list(_KEYS), values="value")
    matched = [_dataset(row, datasets) for row in table.iter_rows(named=True)]
    # Rates are compared as millionths: 0.1 + 0.6 is the paper's 0.7.
    millionths = (pl.col("arrival_rate") * 1e6).round().cast(pl.Int64)
    joined = table.with_columns(pl.Series("dataset", matched, pl.String), rate=millionths).join(
        wide.with_columns(rate=millionths).drop("arrival_rate"),
        on=["dataset", "K", "rate", "round", "policy"],
        how="left",
        maintain_order="left",
        validate="m:1",
    )
    empty = [c for c in joined.columns if c.startswith(_PREFIX) and joined[c].is_null().all()]
    kept = joined.drop("dataset", "rate", *empty)
    return kept.select(_in_pairs(kept.columns))


def answered(points: Sequence[xr.Dataset]) -> dict[str, str]:
    """Return our `source` to the paper's dataset, of those points whose data are the paper's."""
    own = [str(one.attrs["source"]) for one in points if one.attrs["provenance"] == PAPERS]
    return {source: PAPERS_DATA[source.lower()] for source in own}


def _dataset(row: Mapping[str, Any], datasets: Mapping[str, str]) -> str | None:
    """Say which of the paper's datasets a row may stand beside."""
    if row.get("arrivals"):
        return None  # the paper's arrive otherwise
    dataset = datasets.get(str(row.get("source")))
    if dataset == "Synthetic":
        # A setting that is not in the table is taken to be the paper's.
        same = all(row.get(key) in (None, value) for key, value in SYNTHETIC.items())
        return dataset if same else None
    return dataset


def _in_pairs(columns: Sequence[str]) -> list[str]:
    """Move each of the paper's columns to the right of ours, behind its interval."""
    ordered = [column for column in columns if not column.startswith(_PREFIX)]
    for column in columns:
        if column.startswith(_PREFIX):
            ours = column.removeprefix(_PREFIX)
            last = f"{ours}_high" if f"{ours}_high" in ordered else ours
            ordered.insert(ordered.index(last) + 1, column)
    return ordered
