"""SPROUT in its own schema: Parquet, one row a prompt and one struct column an LLM.

A struct is `{num_input_tokens, num_output_tokens, response, score}`. The other columns (`key`,
`dataset`, `prompt` and more) may be more or fewer, only `prompt` is needed; about the structs it is
strict.
"""

import pathlib

import numpy as np
import polars as pl

from cqbjax.datasets.prices import Price, prices_by_name, read_prices, shipped
from cqbjax.datasets.table import RoutingTable, TableError, check

FIELDS = ("num_input_tokens", "num_output_tokens", "score")
SPLITS = ("train", "validation", "test")


def read_sprout(
    path: str | pathlib.Path,
    prices: str | pathlib.Path | None = None,
    name: str = "SPROUT",
    stand_in: str = "",
) -> RoutingTable:
    """Read SPROUT from a Parquet file or from a folder of them.

    cost = (input tokens x input price + output tokens x output price) / 1e6, in USD a query.

    Args:
        path: a `.parquet`, or a folder searched for `*.parquet`, train before validation before
            test.
        prices: a price list by LLM; the shipped `prices/sprout.csv` when None.
        name: the table's name.
        stand_in: what it stands in for, in words.

    Returns:
        The table, prompt ids "<file stem>:<key>" (the row where there is no key); an LLM whose
        struct is null lacks that score (NaN).

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
        name=name,
        prompt_ids=tuple(text for part in ids for text in part),
        prompts=tuple(text for part in prompts for text in part),
        origins=tuple(text for part in origins for text in part),
        servers=servers,
        performance=np.concatenate(scores),
        cost=np.concatenate(costs),
        stand_in=stand_in,
    )
    check(table, str(path), allow_missing=True)
    return table


def _files(path: pathlib.Path) -> list[pathlib.Path]:
    found = [path] if path.is_file() else sorted(path.rglob("*.parquet"))
    if not found:
        raise TableError(f"{path}: no Parquet file of SPROUT there.")

    def order(file: pathlib.Path) -> tuple[int, str]:
        starts = [file.stem.startswith(part) for part in SPLITS]
        return (starts.index(True) if True in starts else len(SPLITS), file.name)

    return sorted(found, key=order)


def _schema(file: pathlib.Path) -> pl.Schema:
    try:
        return pl.read_parquet_schema(file)  # type: ignore[return-value]
    except (pl.exceptions.PolarsError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise TableError(f"{file}: not readable, cut short or not Parquet: {reason}.") from error


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
    """Read one split; responses, nearly all of the file, are never materialised."""
    here = _servers(file)
    if set(here) != set(servers):
        odd = sorted(set(here) ^ set(servers))[0]
        raise TableError(f"{file}: column {odd!r} is not in every file of SPROUT.")
    columns = _schema(file)
    if "prompt" not in columns:
        raise TableError(f"{file}: column 'prompt' is missing.")
    texts = [c for c in ("key", "dataset", "prompt") if c in columns]
    cells = [
        pl.col(server).struct.field(field).cast(pl.Float64, strict=False).alias(f"{server}|{field}")
        for server in servers
        for field in FIELDS
    ]
    lazy = pl.scan_parquet(file).select([pl.col(texts).cast(pl.String), *cells])
    frame = lazy.collect(engine="streaming")
    if frame["prompt"].null_count():
        row = frame["prompt"].is_null().arg_max()
        raise TableError(f"{file}: row {row}, column 'prompt' is empty.")
    keys = frame["key"] if "key" in texts else pl.Series(np.arange(frame.height)).cast(pl.String)
    split = next((part for part in SPLITS if file.stem.startswith(part)), file.stem)
    origins = (
        frame["dataset"].fill_null("unknown").to_list()
        if "dataset" in texts
        else ["sprout"] * frame.height
    )
    scores, tokens_in, tokens_out = (
        frame.select(pl.col(f"{server}|{field}").fill_null(np.nan) for server in servers).to_numpy()
        for field in ("score", "num_input_tokens", "num_output_tokens")
    )
    into = np.array([price.input for price in prices])
    out = np.array([price.output for price in prices])
    cost = (tokens_in * into + tokens_out * out) / 1e6
    return [f"{split}:{key}" for key in keys], frame["prompt"].to_list(), origins, scores, cost
