"""EmbedLLM in its own schema: long-form CSV, one row per (prompt, LLM), 2.7 GB.

Polars streams the files, so that memory holds the scores and each distinct prompt once.
"""

import pathlib

import numpy as np
import polars as pl

from cqbjax.datasets.readers.parquet_csv import check_columns, check_filled, read_with
from cqbjax.datasets.readers.prices import find_prices, read_prices, shipped_prices
from cqbjax.datasets.table import RoutingTable, TableError, check_table

SPLITS = ("train", "val", "test")
COLUMNS = ("prompt_id", "prompt", "model_name", "category", "label")
# The files hold no token counts. One number for all prompts makes the cost a property of the LLM,
# as in the paper, which has one price per LLM; it cancels in every cost rule but "none".
TOKENS_PER_QUERY = 1000


def read_embedllm(
    path: str | pathlib.Path, prices: str | pathlib.Path | None = None
) -> RoutingTable:
    """Read EmbedLLM from `train.csv`, `val.csv` and `test.csv` of a folder, or from one CSV.

    cost = 1,000 tokens, half of them output, at the LLM's prices, in USD per query: the same for
    every prompt.

    Args:
        path: the folder or file.
        prices: a price list; the shipped `prices/embedllm.csv` when None.

    Returns:
        The table, prompts and servers in the order of their first rows; a pair without a row is
        NaN. If a pair has several rows, the largest score counts; the notes count the repeated
        rows.

    Raises:
        TableError: one sentence naming file, row and column, or all LLMs that cannot be priced.
    """
    path = pathlib.Path(path)
    price_file = pathlib.Path(prices) if prices is not None else shipped_prices("embedllm")
    listed = read_prices(price_file)
    files = [path]
    if not path.is_file():
        files = [path / f"{part}.csv" for part in SPLITS if (path / f"{part}.csv").is_file()]
    if not files:
        raise TableError(f"{path}: none of train.csv, val.csv, test.csv of EmbedLLM is there.")
    parts, texts = zip(*map(_read_file, files), strict=True)
    rows = pl.concat(parts)
    prompts = pl.concat(texts).unique(["prompt_id", "prompt"], keep="first", maintain_order=True)
    for again in prompts.filter(~pl.col("prompt_id").is_first_distinct()).iter_rows(named=True):
        raise TableError(
            f"{again['file']}: row {again['row']}, column 'prompt': prompt id "
            f"{again['prompt_id']!r} has two different prompts."
        )
    # Of repeated (LLM, prompt) rows the largest score counts, as the authors do.
    wide = rows.pivot("model_name", index="prompt_id", values="label", aggregate_function="max")
    servers, scores = tuple(wide.columns[1:]), wide.drop("prompt_id").to_numpy(order="c")
    repeated = rows.height - int((~np.isnan(scores)).sum())
    notes = [f"collapsed {repeated:,} repeated rows by max"] if repeated else []
    absent = [f"{part}.csv" for part in SPLITS if path / f"{part}.csv" not in files]
    if absent and path.is_dir():
        notes.append(f"read without {' and '.join(absent)}")
    price = find_prices(servers, listed, price_file).mean(axis=1)
    table = RoutingTable(
        name="EmbedLLM",
        prompt_ids=tuple(prompts["prompt_id"]),
        prompts=tuple(prompts["prompt"]),
        origins=tuple(prompts["category"].fill_null("unknown")),
        servers=servers,
        performance=scores,
        cost=np.broadcast_to(price * TOKENS_PER_QUERY / 1e6, scores.shape).copy(),
        notes=tuple(notes),
        in_file_order=False,
    )
    return check_table(table, str(path), allow_missing=True)


def _read_file(file: pathlib.Path) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the rows of a file without their texts, and its distinct prompts."""

    def collect(lazy: pl.LazyFrame) -> pl.DataFrame:
        return read_with(lambda _: lazy.collect(engine="streaming"), file, "csv")

    whole = pl.scan_csv(file, infer_schema=False, row_index_name="row", row_index_offset=1)
    columns = read_with(lambda _: whole.collect_schema().names(), file, "csv")
    check_columns(columns, COLUMNS, file)
    rows = collect(whole.select("prompt_id", "model_name", "label"))
    labels = rows["label"].cast(pl.Float64, strict=False)
    wrong = ~labels.is_between(0, 1).fill_null(False)
    if wrong.any():
        row = int(wrong.arg_max() or 0)
        raise TableError(
            f"{file}: row {row + 1}, column 'label' must be in [0, 1], got {rows['label'][row]!r}."
        )
    check_filled(rows, ("prompt_id", "model_name"), file)
    first = pl.col("row", "category").first()
    prompts = collect(whole.group_by("prompt_id", "prompt").agg(first).sort("row"))
    for row in prompts.filter(pl.col("prompt").is_null())["row"]:
        raise TableError(f"{file}: row {row}, column 'prompt' is empty.")
    return rows.with_columns(labels), prompts.with_columns(file=pl.lit(str(file)))
