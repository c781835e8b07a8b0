"""A log prepared once: got, checked, read in a stream, its first prompts embedded, and kept.

`data_dir/cache/<content hash>/` holds `conversations.parquet`, `texts.parquet`, `embeddings.npy`
and `meta.json`, which is written last. Chains are linked when they are wanted, since that takes
seconds and the rule is a setting.
"""

import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from cqbjax.chains import linking, reading, shards
from cqbjax.chains.linking import Chains, Rule
from cqbjax.chains.reading import Reading
from cqbjax.chains.shards import LogError
from cqbjax.core.files import ARRAY, read, write
from cqbjax.datasets import cache, fetch
from cqbjax.datasets.cache import Prepared
from cqbjax.datasets.embedding import embed, model_identity
from cqbjax.datasets.load import EMBEDDINGS
from cqbjax.datasets.prepare import Embed
from cqbjax.datasets.progress import steps

NAME, TITLE, REPOSITORY = "wildchat", "WildChat-1M", "allenai/WildChat-1M"
FILES = ("data/train-*", "train-*")
MODEL = "gpt-4-1106-preview"
ENCODER = "sentence-transformers/paraphrase-multilingual-mpnet-base-v2"
TRUTH = "truth.parquet"  # beside shards that were generated
FORMAT = "1"  # raise when the same files would give other conversations


class Log(NamedTuple):
    """A prepared log.

    Attributes:
        frame: one row a conversation (`reading.SCHEMA`); of a generated log also `planted`, the
            probability with which its user was satisfied.
        embeddings: [texts, d] of the distinct first prompts.
        name: how it is called in tables.
        stand_in: what it stands in for, empty for the real log.
        reading: what became of every row.
        digest: content hash of all that it was made from.
    """

    frame: pl.DataFrame
    embeddings: np.ndarray
    name: str
    stand_in: str
    reading: Reading
    digest: str


def prepare(
    data_dir: Path, source: Path | None = None, model: str = MODEL, encoder: str = ENCODER,
    tokens: str = "bytes", revision: str | None = None, batch_size: int = 32, progress: bool = True,
    embedder: Embed | None = None,
) -> Prepared:  # fmt: skip
    """Build a log's entry in `data_dir/cache`, unless it is there.

    Args:
        data_dir: the folder of data; a download goes to `data_dir/wildchat/`.
        source: a shard or a folder of them, instead of a download.
        model: whose conversations are kept.
        encoder: of the first prompts, a hub name or a local folder.
        tokens: how tokens are counted (`reading.token_counter`).
        revision: the hub's commit; None is the newest, or the one recorded.
        batch_size: prompts a forward pass.
        progress: draw progress bars.
        embedder: prompts [P] -> [P, d] in place of the encoder (tests).

    Returns:
        What was done. After a kill the next call goes on from what was embedded.

    Raises:
        ValueError: one sentence saying what is wrong with the files, the model or the encoder.
    """
    counter = reading.token_counter(tokens)

    def inventory(path: Path) -> list[Path]:
        files = _shards(path)
        shards.check(files, model)
        return files

    got = fetch.get(NAME, data_dir, source, (REPOSITORY, FILES[:1], None), revision, inventory)

    def write_files(folder: Path) -> dict[str, Any]:
        with steps(progress, "reading conversations", shards.count(got.files)) as advance:
            said = reading.read_log(got.files, model, folder, counter, advance)
        texts = tuple(reading.load_texts(folder))
        kept = cache.cache_folder(data_dir) / "embeddings"
        encode = embedder or (lambda texts: embed(texts, kept, encoder, batch_size, progress))
        half = np.asarray(encode(texts), np.float32).astype(np.float16)
        write(folder / EMBEDDINGS, ARRAY, half)
        if (truth := got.root / TRUTH).is_file():
            shutil.copyfile(truth, folder / TRUTH)
        return {
            "stand_in": shards.stand_in(got.files), "model": model, "encoder": encoder,
            "tokens": tokens, "reading": said._asdict(),
        }  # fmt: skip

    identity = "given" if embedder else model_identity(encoder)
    depends_on = (FORMAT, NAME, model, tokens, identity, *got.contents)
    return cache.build(data_dir, NAME, depends_on, got.revision, write_files)


def load(data_dir: Path) -> Log:
    """Return the log that was prepared last.

    Raises:
        LogError: none was.
    """
    entry = cache.current(data_dir, NAME)
    if entry is None:
        raise LogError(
            f"{data_dir}: no conversation log is prepared there: prepare_data.py dataset={NAME} "
            f"data_dir={data_dir} downloads WildChat-1M, source=PATH reads a local copy, and "
            "made_up=N generates one."
        )
    folder, meta = entry.folder, entry.meta
    frame = reading.load(folder)
    if (folder / TRUTH).is_file():
        planted = pl.read_parquet(folder / TRUTH, columns=["row", "planted"])
        frame = frame.join(planted, on="row", how="left", maintain_order="left")
    stand_in = str(meta["stand_in"])
    name = f"{TITLE} (generated)" if stand_in else TITLE
    embeddings = read(folder / EMBEDDINGS, ARRAY)
    return Log(frame, embeddings, name, stand_in, Reading(**meta["reading"]), entry.key)


def describe(log: Log, chains: Chains, rule: Rule) -> list[str]:
    """Say in lines what a log holds and what the rule made of it."""
    said, sizes = log.reading, chains.by_length()
    most = max(sizes)
    listed = ", ".join(f"{size}: {sizes[size]:,}" for size in sorted(sizes)[:8])
    more = f", ... up to {most}" if len(sizes) > 8 else ""
    lines = [
        f"{said.rows:,} conversations read, {said.others:,} of other models; {said.kept:,} kept of "
        f"{said.users:,} users with {said.texts:,} distinct first prompts",
        f"chains by length: {listed}{more}",
        f"{chains.identical + chains.similar:,} pairs linked: {chains.identical:,} identical, "
        f"{chains.similar:,} by cosine >= {rule.threshold:g}; {chains.early:,} conversations asked "
        "the same before the earlier one had ended, and were not linked",
    ]
    if dropped := sum(said.dropped.values()):
        why = ", ".join(f"{reason} {count:,}" for reason, count in sorted(said.dropped.items()))
        lines.append(f"{dropped:,} rows dropped: {why}")
    if said.repaired:
        lines.append(f"{said.repaired:,} first prompts were not valid UTF-8: kept, repaired")
    if log.stand_in:
        lines.append(f"note: {log.stand_in}")
    return lines


def link(log: Log, rule: Rule) -> Chains:
    """Link a prepared log's conversations (`linking.link`)."""
    return linking.link(log.frame, log.embeddings, rule)


def _shards(path: Path) -> list[Path]:
    """Return the shards of a source: itself, or the Parquet files of a folder."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise LogError(f"{path}: no such file or folder.")
    files = sorted({file for pattern in FILES for file in path.glob(pattern) if file.is_file()})
    files = files or sorted(file for file in path.glob("*.parquet") if file.name != TRUTH)
    if not files:
        raise LogError(f"{path}: no shard there, neither data/train-* nor *.parquet.")
    return files
