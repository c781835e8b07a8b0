"""EmbedLLM in its own schema: long-form CSV, one row per (prompt, LLM), 2.7 GB.

The files are read in blocks, so that memory holds the finished table (scores of P x N and the P
prompts) and 32 blocks that are read ahead, whatever the size of the file.
"""

import csv
import pathlib
from collections.abc import Iterator

import numpy as np
import polars as pl
import rich.progress

from cqbjax.datasets.readers.parquet_csv import check_columns, check_filled
from cqbjax.datasets.readers.prices import find_prices, read_prices, shipped_prices
from cqbjax.datasets.table import RoutingTable, TableError, check_table

SPLITS = ("train", "val", "test")
COLUMNS = ("prompt_id", "prompt", "model_name", "category", "label")
# pyarrow reads 32 blocks ahead whatever their size, so this bounds unread memory at 256 MB; it also
# bounds the longest row.
BLOCK_BYTES = 8 << 20
# The files hold no token counts. One number for all prompts makes the cost a property of the LLM,
# as in the paper, which has one price per LLM; it cancels in every cost rule but "none".
TOKENS_PER_QUERY = 1000


def read_embedllm(
    path: str | pathlib.Path, prices: str | pathlib.Path | None = None, progress: bool = False,
    block_bytes: int = BLOCK_BYTES,
) -> RoutingTable:  # fmt: skip
    """Read EmbedLLM from `train.csv`, `val.csv` and `test.csv` of a folder, or from one CSV.

    cost = 1,000 tokens, half of them output, at the LLM's prices, in USD per query: the same for
    every prompt.

    Args:
        path: the folder or file.
        prices: a price list; the shipped `prices/embedllm.csv` when None.
        progress: draw a progress bar over the bytes read.
        block_bytes: bytes read at a time.

    Returns:
        The table, prompts and servers in the order of their first rows; a pair without a row is
        NaN. Of repeated pairs the largest score counts; the notes give their number.

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
    matrix = _ScoreMatrix()
    for file in files:
        first = 1
        for block in _read_blocks(file, block_bytes, progress):
            matrix.add(block, file, first)
            first += block.height
    servers = tuple(matrix.servers)
    scores = matrix.scores[: len(matrix.prompts), : len(servers)].copy()
    repeated = matrix.rows - int((~np.isnan(scores)).sum())
    notes = [f"collapsed {repeated:,} repeated rows by max"] if repeated else []
    absent = [f"{part}.csv" for part in SPLITS if path / f"{part}.csv" not in files]
    if absent and path.is_dir():
        notes.append(f"read without {' and '.join(absent)}")
    priced = find_prices(servers, listed, price_file)
    price = np.array([(one.input + one.output) / 2 for one in priced])
    table = RoutingTable(
        name="EmbedLLM",
        prompt_ids=tuple(matrix.prompts),
        prompts=tuple(text for _, text, _ in matrix.prompts.values()),
        origins=tuple(category for _, _, category in matrix.prompts.values()),
        servers=servers,
        performance=scores,
        cost=np.broadcast_to(price * TOKENS_PER_QUERY / 1e6, scores.shape).copy(),
        notes=tuple(notes),
        in_file_order=False,
    )
    check_table(table, str(path), allow_missing=True)
    return table


class _ScoreMatrix:
    """Collects long-form rows in a dense matrix that grows by doubling.

    Attributes:
        prompts: id -> row, text and category.
        servers: name -> column.
        scores: NaN where no row was added.
        rows: number of rows added.
    """

    def __init__(self) -> None:
        self.prompts: dict[str, tuple[int, str, str]] = {}
        self.servers: dict[str, int] = {}
        self.scores: np.ndarray = np.full((1024, 128), np.nan)
        self.rows = 0

    def add(self, block: pl.DataFrame, file: pathlib.Path, first: int) -> None:
        """Add a block whose first row is number `first` of the file."""
        labels = block["label"].cast(pl.Float64, strict=False)
        wrong = (labels.is_null() | ~labels.is_between(0, 1)).fill_null(True)
        if wrong.any():
            row = int(wrong.arg_max() or 0)
            raise TableError(
                f"{file}: row {first + row}, column 'label' must be in [0, 1], "
                f"got {block['label'][row]!r}."
            )
        check_filled(block, ("prompt_id", "prompt", "model_name"), file, first)
        texts = block.with_row_index("row").unique(["prompt_id", "prompt"], maintain_order=True)
        columns = ("row", "prompt_id", "prompt", "category")
        for row, key, text, category in texts.select(columns).iter_rows():
            known = self.prompts.setdefault(key, (len(self.prompts), text, category or "unknown"))
            if known[1] != text:
                raise TableError(
                    f"{file}: row {first + row}, column 'prompt': prompt id {key!r} has two "
                    f"different prompts."
                )
        for server in block["model_name"].unique(maintain_order=True):
            self.servers.setdefault(server, len(self.servers))
        sizes = zip(self.scores.shape, (len(self.prompts), len(self.servers)), strict=True)
        more = [max(size, need - size) if need > size else 0 for size, need in sizes]
        if any(more):
            self.scores = np.pad(self.scores, [(0, n) for n in more], constant_values=np.nan)
        rows = {key: self.prompts[key][0] for key in block["prompt_id"].unique()}
        i = block["prompt_id"].replace_strict(rows)
        j = block["model_name"].replace_strict(self.servers)
        # fmax ignores NaN: of repeated (LLM, prompt) rows the largest counts, as the authors do.
        np.fmax.at(self.scores, (i.to_numpy(), j.to_numpy()), labels.to_numpy())
        self.rows += block.height


def _read_blocks(file: pathlib.Path, block_bytes: int, progress: bool) -> Iterator[pl.DataFrame]:
    """Yield blocks of rows; prompts hold line breaks, so a CSV reader must find the rows."""
    import pyarrow as pa
    import pyarrow.csv

    with rich.progress.open(
        file, "rb", description=f"reading {file.name}", disable=not progress
    ) as handle:
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
                    column_types=dict.fromkeys(COLUMNS, pa.string()),
                    strings_can_be_null=True,
                    null_values=[""],
                    quoted_strings_can_be_null=False,
                ),
            )
            for batch in reader:
                yield pl.DataFrame(pl.from_arrow(batch))
        except (pa.ArrowInvalid, UnicodeDecodeError) as error:
            reason = str(error).splitlines()[0]
            raise TableError(f"{file}: not a whole CSV, perhaps cut short: {reason}.") from error
