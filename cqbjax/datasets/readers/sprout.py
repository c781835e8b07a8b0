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
from cqbjax.datasets.readers.prices import Price, find_prices, read_prices, shipped_prices
from cqbjax.datasets.table import CellNames, RoutingTable, TableError, check_table, check_unique

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
    _, servers = _read_schema(files[0])
    priced = find_prices(servers, listed, price_file)
    parts = [_read_file(file, servers, priced) for file in files]
    ids, prompts, origins = (
        tuple(itertools.chain.from_iterable(part[i] for part in parts)) for i in range(3)
    )
    table = RoutingTable(
        name="SPROUT", prompt_ids=ids, prompts=prompts, origins=origins, servers=servers,
        performance=np.concatenate([part[3] for part in parts]),
        cost=np.concatenate([part[4] for part in parts]),
        in_file_order=False,
    )  # fmt: skip
    return check_table(table, str(path), allow_missing=True)


def _read_schema(file: pathlib.Path) -> tuple[list[str], tuple[str, ...]]:
    """Return the columns and the LLMs: the struct columns, each of which must have all `FIELDS`."""
    schema = read_with(pl.read_parquet_schema, file, "parquet")
    structs = {name: kind for name, kind in schema.items() if isinstance(kind, pl.Struct)}
    for name, kind in structs.items():
        for field in FIELDS:
            if field not in {part.name for part in kind.fields}:
                raise TableError(
                    f"{file}: column {name!r} is a struct without the field {field!r}."
                )
    return list(schema), tuple(structs)


def _read_file(
    file: pathlib.Path, servers: tuple[str, ...], prices: list[Price]
) -> tuple[list[str], list[str], list[str], np.ndarray, np.ndarray]:
    """Read and check ids, prompts, origins [P], scores and cost in USD per query [P, N] of a file.

    Responses, most of the file, are never materialised.
    """
    columns, found = _read_schema(file)
    if different := sorted(set(found) ^ set(servers)):
        raise TableError(f"{file}: column {different[0]!r} is not in every file of SPROUT.")
    check_columns(columns, ["prompt"], file)
    texts = [c for c in ("key", "dataset", "prompt") if c in columns]
    cells = [
        pl.col(server).struct.field(field).alias(f"{server}|{field}")
        for server in servers
        for field in FIELDS
    ]
    lazy = pl.scan_parquet(file).select([pl.col(texts).cast(pl.String), *cells])
    frame = lazy.collect(engine="streaming")
    check_filled(frame, [column for column in ("prompt", "key") if column in texts], file)
    keys = frame["key"].to_list() if "key" in texts else [str(row) for row in range(frame.height)]
    check_unique(keys, str(file), "key")
    origins = ["sprout"] * frame.height
    if "dataset" in texts:
        origins = frame["dataset"].fill_null("unknown").to_list()
    labels = {field: f"column '{{}}', field '{field}'" for field in FIELDS}
    values = {
        field: number_columns(
            frame, [f"{server}|{field}" for server in servers], file,
            [label.format(server) for server in servers],
        )
        for field, label in labels.items()
    }  # fmt: skip
    scores, names = values["score"], CellNames(str(file), keys, servers, score=labels["score"])
    for field in TOKENS:
        tokens, label = values[field], labels[field]
        names.raise_first(tokens < 0, tokens, label, "must not be negative, got {value}")
        absent = ~np.isfinite(tokens) & ~np.isnan(scores)
        names.raise_first(absent, tokens, label, "is missing or not finite, got {value}")
    into = np.array([price.input for price in prices])
    out = np.array([price.output for price in prices])
    cost = (values[TOKENS[0]] * into + values[TOKENS[1]] * out) / 1e6
    names.check(scores, cost)
    return [f"{file.stem}:{key}" for key in keys], frame["prompt"].to_list(), origins, scores, cost
