"""EmbedLLM in its own schema: long-form CSV, one row a (prompt, LLM), 2.7 GB.

The files are read in blocks, so that memory is that of the finished table (scores of P x N plus the
P prompts) and of 32 blocks read ahead, whatever the size of the file.
"""

import csv
import pathlib
from collections.abc import Iterator

import numpy as np
import polars as pl

from cqbjax.datasets.progress import steps
from cqbjax.datasets.readers.compact import check_columns, check_filled
from cqbjax.datasets.readers.prices import prices_by_name, read_prices, shipped
from cqbjax.datasets.table import RoutingTable, TableError, check_table

SPLITS = ("train", "val", "test")
COLUMNS = ("prompt_id", "prompt", "model_name", "category", "label")
# pyarrow reads 32 blocks ahead whatever their size, so this bounds what lies unread in memory at
# 256 MB; it also bounds the longest row.
BLOCK_BYTES = 8 << 20
# The files hold no token counts. One number for all keeps the cost a property of the LLM alone, as
# the paper's map of one price an LLM does; it cancels in every cost rule but "none".
TOKENS_A_QUERY = 1000


class _Long:
    """Collect long-form rows into a dense matrix that grows by doubling."""

    def __init__(self) -> None:
        self.prompts: dict[str, tuple[int, str, str]] = {}
        self.servers: dict[str, int] = {}
        self.scores: np.ndarray = np.full((1024, 128), np.nan)
        self.rows = 0

    def add(self, block: pl.DataFrame, file: pathlib.Path, first: int) -> None:
        """Add one block whose first row is number `first` of the file."""
        labels = block["label"].cast(pl.Float64, strict=False)
        wrong = (labels.is_null() | ~labels.is_between(0, 1)).fill_null(True)
        if wrong.any():
            row = int(wrong.arg_max() or 0)
            raise TableError(
                f"{file}: row {first + row}, column 'label' must be in [0, 1], "
                f"got {block['label'][row]!r}."
            )
        check_filled(block, ("prompt_id", "prompt", "model_name"), file, first)
        self._register(block, file, first)
        own = {key: self.prompts[key][0] for key in block["prompt_id"].unique()}
        i = block["prompt_id"].replace_strict(own)
        j = block["model_name"].replace_strict(self.servers)
        # fmax ignores NaN: repeated (LLM, prompt) rows collapse by max, as in the authors' code.
        np.fmax.at(self.scores, (i.to_numpy(), j.to_numpy()), labels.to_numpy())
        self.rows += block.height

    def _register(self, block: pl.DataFrame, file: pathlib.Path, first: int) -> None:
        texts = block.with_row_index("row").unique(["prompt_id", "prompt"], maintain_order=True)
        for row, key, text, category in texts.select(
            "row", "prompt_id", "prompt", "category"
        ).iter_rows():
            known = self.prompts.setdefault(key, (len(self.prompts), text, category or "unknown"))
            if known[1] != text:
                raise TableError(
                    f"{file}: row {first + row}, column 'prompt': prompt id {key!r} has two "
                    f"different prompts."
                )
        for server in block["model_name"].unique(maintain_order=True):
            self.servers.setdefault(server, len(self.servers))
        self._grow(len(self.prompts), len(self.servers))

    def _grow(self, rows: int, columns: int) -> None:
        sizes = zip(self.scores.shape, (rows, columns), strict=True)
        more = [max(size, need - size) if need > size else 0 for size, need in sizes]
        if any(more):
            self.scores = np.pad(self.scores, [(0, n) for n in more], constant_values=np.nan)


def read_embedllm(
    path: str | pathlib.Path,
    prices: str | pathlib.Path | None = None,
    progress: bool = False,
    block_bytes: int = BLOCK_BYTES,
) -> RoutingTable:
    """Read EmbedLLM from `train.csv`, `val.csv` and `test.csv` of a folder, or from one CSV.

    cost = 1,000 tokens, half of them output, at the LLM's prices, in USD a query: the same for
    every prompt.

    Args:
        path: the folder or file.
        prices: a price list; the shipped `prices/embedllm.csv` when None.
        progress: draw a progress bar over the bytes read.
        block_bytes: bytes read at a time.

    Returns:
        The table, prompts and servers in the order in which they first occur; a pair that never
        occurs is NaN. Repeated pairs are collapsed by max and counted in the notes.

    Raises:
        TableError: one sentence naming file, row and column, or all LLMs that cannot be priced.
    """
    path = pathlib.Path(path)
    price_file = pathlib.Path(prices) if prices is not None else shipped("embedllm")
    listed = read_prices(price_file)
    files = _files(path)
    long = _Long()
    for file in files:
        first, read = 1, 0
        with steps(progress, f"reading {file.name}", file.stat().st_size) as done:
            for block, position in _blocks(file, block_bytes):
                long.add(block, file, first)
                first += block.height
                done(position - read)
                read = position
    servers = tuple(long.servers)
    scores = long.scores[: len(long.prompts), : len(servers)].copy()
    repeated = long.rows - int((~np.isnan(scores)).sum())
    notes = [f"collapsed {repeated:,} repeated rows by max"] if repeated else []
    absent = [f"{part}.csv" for part in SPLITS if path / f"{part}.csv" not in files]
    if absent and path.is_dir():
        notes.append(f"read without {' and '.join(absent)}")
    priced = prices_by_name(servers, listed, price_file)
    price = np.array([(one.input + one.output) / 2 for one in priced])
    table = RoutingTable(
        name="EmbedLLM",
        prompt_ids=tuple(long.prompts),
        prompts=tuple(text for _, text, _ in long.prompts.values()),
        origins=tuple(category for _, _, category in long.prompts.values()),
        servers=servers,
        performance=scores,
        cost=np.broadcast_to(price * TOKENS_A_QUERY / 1e6, scores.shape).copy(),
        notes=tuple(notes),
        in_order=False,
    )
    check_table(table, str(path), allow_missing=True)
    return table


def _files(path: pathlib.Path) -> list[pathlib.Path]:
    if path.is_file():
        return [path]
    files = [path / f"{part}.csv" for part in SPLITS if (path / f"{part}.csv").is_file()]
    if not files:
        raise TableError(f"{path}: none of train.csv, val.csv, test.csv of EmbedLLM is there.")
    return files


def _blocks(file: pathlib.Path, block_bytes: int) -> Iterator[tuple[pl.DataFrame, int]]:
    """Yield (rows, bytes read so far); prompts hold line breaks, so a real CSV reader cuts."""
    import pyarrow as pa
    import pyarrow.csv

    with file.open("rb") as handle:
        try:
            header = next(csv.reader([handle.readline().decode("utf-8-sig")]), [])
            check_columns(header, COLUMNS, file)
            handle.seek(0)
            reader = pyarrow.csv.open_csv(
                handle,
                read_options=pyarrow.csv.ReadOptions(block_size=block_bytes),
                parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True),
                convert_options=pyarrow.csv.ConvertOptions(
                    include_columns=list(COLUMNS),
                    column_types={column: pa.string() for column in COLUMNS},
                    strings_can_be_null=True,
                    null_values=[""],
                    quoted_strings_can_be_null=False,
                ),
            )
            for batch in reader:
                yield pl.DataFrame(pl.from_arrow(batch)), handle.tell()
        except (pa.ArrowInvalid, UnicodeDecodeError) as error:
            reason = str(error).splitlines()[0]
            raise TableError(f"{file}: not a whole CSV, perhaps cut short: {reason}.") from error
