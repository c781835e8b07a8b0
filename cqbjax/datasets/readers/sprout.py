"""SPROUT in its own schema: Parquet, one row a prompt and one struct column an LLM.

A struct is `{num_input_tokens, num_output_tokens, response, score}`. The other columns (`key`,
`dataset`, `prompt` and more) may be more or fewer, only `prompt` is needed; about the structs it is
strict.
"""

import itertools
import pathlib

import numpy as np
import polars as pl

from cqbjax.datasets.readers.compact import check_columns, check_filled, numbers, opened
from cqbjax.datasets.readers.prices import Price, prices_by_name, read_prices, shipped
from cqbjax.datasets.table import (
    RoutingTable,
    TableError,
    check_cells,
    check_table,
    check_unique,
    refuse_first,
)

FIELDS = ("num_input_tokens", "num_output_tokens", "score")
SPLITS = ("train", "validation", "test")


def read_sprout(
    path: str | pathlib.Path,
    prices: str | pathlib.Path | None = None,
) -> RoutingTable:
    """Read SPROUT from a Parquet file or from a folder of them.

    cost = (input tokens x input price + output tokens x output price) / 1e6, in USD a query.

    Args:
        path: a `.parquet`, or a folder searched for `*.parquet`, train before validation before
            test.
        prices: a price list by LLM; the shipped `prices/sprout.csv` when None.

    Returns:
        The table, prompt ids "<file stem>:<key>" (the row in the file where there is no key); an
        LLM whose struct is null lacks that score (NaN).

    Raises:
        TableError: one sentence naming file, row and column, or all LLMs without a price.
    """
    path = pathlib.Path(path)
    price_file = pathlib.Path(prices) if prices is not None else shipped("sprout")
    listed = read_prices(price_file)
    files = _files(path)
    servers = _servers(files[0])
    priced = prices_by_name(servers, listed, price_file)
    parts = [_read_file(file, servers, priced) for file in files]
    ids, prompts, origins, scores, costs = (list(column) for column in zip(*parts, strict=True))
    table = RoutingTable(
        name="SPROUT",
        prompt_ids=tuple(text for part in ids for text in part),
        prompts=tuple(text for part in prompts for text in part),
        origins=tuple(text for part in origins for text in part),
        servers=servers,
        performance=np.concatenate(scores),
        cost=np.concatenate(costs),
        in_order=False,
    )
    check_table(table, str(path), allow_missing=True)
    return table


def _files(path: pathlib.Path) -> list[pathlib.Path]:
    files = [path] if path.is_file() else sorted(path.rglob("*.parquet"))
    if not files:
        raise TableError(f"{path}: no Parquet file of SPROUT there.")
    # Prompt ids begin with the stem, and shards may well number their rows alike.
    for file, other in itertools.combinations(files, 2):
        if file.stem == other.stem:
            raise TableError(f"{file}: {other} has the same name, each needs one of its own.")

    def order(file: pathlib.Path) -> tuple[int, str]:
        starts = [file.stem.startswith(part) for part in SPLITS]
        return (starts.index(True) if True in starts else len(SPLITS), file.name)

    return sorted(files, key=order)


def _schema(file: pathlib.Path) -> pl.Schema:
    return opened(file, pl.read_parquet_schema, "parquet")  # type: ignore[return-value]


def _servers(file: pathlib.Path) -> tuple[str, ...]:
    structs = {name: kind for name, kind in _schema(file).items() if isinstance(kind, pl.Struct)}
    for name, kind in structs.items():
        for field in FIELDS:
            if field not in {part.name for part in kind.fields}:
                raise TableError(
                    f"{file}: column {name!r} is a struct without the field {field!r}."
                )
    return tuple(structs)


def _read_file(
    file: pathlib.Path, servers: tuple[str, ...], prices: list[Price]
) -> tuple[list[str], list[str], list[str], np.ndarray, np.ndarray]:
    """Read and check one file; responses, nearly all of it, are never materialised."""
    here = _servers(file)
    if set(here) != set(servers):
        odd = sorted(set(here) ^ set(servers))[0]
        raise TableError(f"{file}: column {odd!r} is not in every file of SPROUT.")
    columns = _schema(file)
    check_columns(list(columns), ["prompt"], file)
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
    origins = (
        frame["dataset"].fill_null("unknown").to_list()
        if "dataset" in texts
        else ["sprout"] * frame.height
    )
    scores, cost = _scores_and_cost(frame, keys, servers, prices, file)
    return [f"{file.stem}:{key}" for key in keys], frame["prompt"].to_list(), origins, scores, cost


def _scores_and_cost(
    frame: pl.DataFrame,
    keys: list[str],
    servers: tuple[str, ...],
    prices: list[Price],
    file: pathlib.Path,
) -> tuple[np.ndarray, np.ndarray]:
    """Return scores and USD a query, each [P, N]; a bad field is refused by row and name."""
    labels = {field: f"column '{{}}', field '{field}'" for field in FIELDS}
    values = {
        field: numbers(
            frame,
            [f"{server}|{field}" for server in servers],
            file,
            [labels[field].format(server) for server in servers],
        )
        for field in FIELDS
    }
    scored = ~np.isnan(values["score"])
    for field in ("num_input_tokens", "num_output_tokens"):
        tokens = values[field]
        for bad, rule in (
            (tokens < 0, "must not be negative, got {value}"),
            (~np.isfinite(tokens) & scored, "is missing or not finite, got {value}"),
        ):
            refuse_first(bad, tokens, keys, servers, str(file), labels[field], rule)
    into = np.array([price.input for price in prices])
    out = np.array([price.output for price in prices])
    cost = (values["num_input_tokens"] * into + values["num_output_tokens"] * out) / 1e6
    score_label = labels["score"]
    check_cells(values["score"], cost, keys, servers, str(file), score_label=score_label)
    return values["score"], cost
