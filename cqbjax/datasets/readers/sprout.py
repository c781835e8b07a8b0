"""SPROUT in its own schema: Parquet, one row per prompt and one struct column per LLM.

A struct is `{num_input_tokens, num_output_tokens, response, score}`. Of the other columns (`key`,
`dataset`, `prompt` and more) only `prompt` is required.
"""

import itertools
import pathlib

import numpy as np
import polars as pl

from cqbjax.datasets.readers.parquet_csv import (
    check_columns,
    check_filled,
    number_columns,
    read_with,
)
from cqbjax.datasets.readers.prices import find_prices, read_prices, shipped_prices
from cqbjax.datasets.table import RoutingTable, TableError, check_cells, check_table, check_unique

TOKENS = ("num_input_tokens", "num_output_tokens")
FIELDS = (*TOKENS, "score")
SPLITS = ("train", "validation", "test")


def read_sprout(path: str | pathlib.Path, prices: str | pathlib.Path | None = None) -> RoutingTable:
    """Read SPROUT from a Parquet file or from a folder of them.

    cost = (input tokens x input price + output tokens x output price) / 1e6, in USD per query.

    Args:
        path: a `.parquet`, or a folder searched for `*.parquet`, train before validation before
            test.
        prices: a price list by LLM; the shipped `prices/sprout.csv` when None.

    Returns:
        The table. The id of a prompt is "<file stem>:<key>"; if the file has no column `key`, the
        number of the row replaces the key. If the struct of an LLM is null, its score is missing
        (NaN).

    Raises:
        TableError: one sentence naming file, row and column, or all LLMs without a price.
    """
    path = pathlib.Path(path)
    price_file = pathlib.Path(prices) if prices is not None else shipped_prices("sprout")
    listed = read_prices(price_file)
    files = [path] if path.is_file() else sorted(path.rglob("*.parquet"))
    if not files:
        raise TableError(f"{path}: no Parquet file of SPROUT there.")
    # Prompt ids begin with the stem, and two files may number their rows alike.
    for file, other in itertools.combinations(files, 2):
        if file.stem == other.stem:
            raise TableError(f"{file}: {other} has the same name, each needs one of its own.")
    files.sort(key=lambda file: ([not file.stem.startswith(s) for s in SPLITS], file.name))
    servers = _find_servers(files[0])
    price = find_prices(servers, listed, price_file)
    texts, values = zip(*(_read_file(file, servers) for file in files), strict=True)
    prompts = pl.concat(texts)
    into, out, scores = np.concatenate(values, axis=1)
    table = RoutingTable(
        name="SPROUT",
        prompt_ids=tuple(prompts["prompt_id"]),
        prompts=tuple(prompts["prompt"]),
        origins=tuple(prompts["dataset"]),
        servers=servers,
        performance=scores,
        cost=(into * price[:, 0] + out * price[:, 1]) / 1e6,
        in_file_order=False,
    )
    return check_table(table, str(path), allow_missing=True)


def _find_servers(file: pathlib.Path) -> tuple[str, ...]:
    """Return the LLMs: the struct columns, each of which must have all `FIELDS`."""
    schema = read_with(pl.read_parquet_schema, file, "parquet")
    check_columns(list(schema), ["prompt"], file)
    structs = {name: kind for name, kind in schema.items() if isinstance(kind, pl.Struct)}
    for name, kind in structs.items():
        for field in FIELDS:
            if field not in {part.name for part in kind.fields}:
                raise TableError(
                    f"{file}: column {name!r} is a struct without the field {field!r}."
                )
    return tuple(structs)


def _read_file(file: pathlib.Path, servers: tuple[str, ...]) -> tuple[pl.DataFrame, np.ndarray]:
    """Read and check a file: `prompt_id`, `prompt` and `dataset`, and the `FIELDS` [3, P, N].

    Responses, most of the file, are never materialised.
    """
    if different := sorted(set(_find_servers(file)) ^ set(servers)):
        raise TableError(f"{file}: column {different[0]!r} is not in every file of SPROUT.")
    whole = pl.scan_parquet(file)
    columns = whole.collect_schema().names()
    texts = {
        "prompt": pl.col("prompt"),
        "key": pl.col("key") if "key" in columns else pl.int_range(pl.len()),
        "dataset": pl.col("dataset") if "dataset" in columns else pl.lit("sprout"),
    }
    cells = {
        f"{server}|{field}": pl.col(server).struct.field(field)
        for server in servers
        for field in FIELDS
    }
    strings = {name: text.cast(pl.String) for name, text in texts.items()}
    frame = whole.select(**strings, **cells).collect(engine="streaming")
    check_filled(frame, ["prompt", "key"], file)
    keys, values = frame["key"].to_list(), {}
    check_unique(keys, str(file), "key")
    for field in reversed(FIELDS):  # scores first: where one is missing, tokens may be
        names = {f"{server}|{field}": server for server in servers}
        part = frame.select(*names).rename(names)
        values[field] = number_columns(part, servers, file, f", field {field!r}")
        labels = f"column '{{}}', field '{FIELDS[-1]}'", f"column '{{}}', field {field!r}"
        check_cells(values["score"], values[field], str(file), keys, servers, labels)
    ids = pl.lit(f"{file.stem}:") + pl.col("key")
    prompts = frame.select(ids.alias("prompt_id"), "prompt", pl.col("dataset").fill_null("unknown"))
    return prompts, np.stack([values[field] for field in FIELDS])
