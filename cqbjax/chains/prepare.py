"""A log prepared once: got, checked, read in a stream, its first prompts embedded, and kept.

`data_dir/cache/<content hash>/` holds `conversations.parquet`, `texts.parquet`, `embeddings.npy`
and `meta.json`, which is written last. Chains are linked when they are wanted, since that takes
seconds and the rule is a setting.
"""

import contextlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import rich.progress

from cqbjax.chains import linking, reading, shards
from cqbjax.chains.linking import Chains, Rule
from cqbjax.chains.reading import Reading
from cqbjax.chains.shards import LogError
from cqbjax.core.files import content_key, write_atomic
from cqbjax.datasets import cache, fetch
from cqbjax.datasets.embedding import embed, model_identity
from cqbjax.datasets.prepare import Embed, Prepared

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
    where = "" if source is None else f".{content_key(str(Path(source).resolve()))[:8]}"
    record = cache.cache_folder(data_dir) / f"{NAME}{where}.checksums.json"
    path, revision = _get(data_dir, source, revision, record)
    files = _shards(path)
    shards.check(files, model)
    root = path if path.is_dir() else path.parent
    lines = fetch.verify(files, root, record, revision)
    identity = "given" if embedder else model_identity(encoder)
    key = content_key(FORMAT, NAME, model, tokens, identity, *lines)
    if cache.is_built(data_dir, key):
        cache.point(data_dir, NAME, key)
        return Prepared(key, False, revision)
    folder = cache.cache_folder(data_dir) / key
    with _bar(progress, "reading conversations", shards.count(files)) as advance:
        said = reading.read_log(files, model, folder, counter, advance)
    texts = tuple(reading.load_texts(folder))
    if embedder:
        vectors = embedder(texts)
    else:
        kept = cache.cache_folder(data_dir) / "embeddings"
        vectors = embed(texts, kept, encoder, batch_size, progress)
    half = np.asarray(vectors, np.float32).astype(np.float16)
    write_atomic(folder / "embeddings.npy", lambda file: np.save(file, half, allow_pickle=False))
    if (truth := root / TRUTH).is_file():
        shutil.copyfile(truth, folder / TRUTH)
    meta = {
        "stand_in": shards.stand_in(files), "model": model, "encoder": encoder, "tokens": tokens,
        "reading": said._asdict(),
    }  # fmt: skip
    cache.write_json(folder / "meta.json", meta)
    cache.point(data_dir, NAME, key)
    return Prepared(key, True, revision)


def load(data_dir: Path) -> Log:
    """Return the log that was prepared last.

    Raises:
        LogError: none was.
    """
    pointer = cache.cache_folder(data_dir) / f"{NAME}.json"
    key = str(cache.read_json(pointer).get("entry", "")) if pointer.is_file() else ""
    if not key or not cache.is_built(data_dir, key):
        raise LogError(
            f"{data_dir}: no conversation log is prepared there: prepare_data.py dataset={NAME} "
            f"data_dir={data_dir} downloads WildChat-1M, source=PATH reads a local copy, and "
            "made_up=N generates one."
        )
    folder = cache.cache_folder(data_dir) / key
    meta = cache.read_json(folder / "meta.json")
    frame = reading.load(folder)
    if (folder / TRUTH).is_file():
        planted = pl.read_parquet(folder / TRUTH, columns=["row", "planted"])
        frame = frame.join(planted, on="row", how="left", maintain_order="left")
    stand_in = str(meta["stand_in"])
    name = f"{TITLE} (generated)" if stand_in else TITLE
    embeddings = np.load(folder / "embeddings.npy", allow_pickle=False)
    return Log(frame, embeddings, name, stand_in, Reading(**meta["reading"]), key)


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


def _get(
    data_dir: Path, source: Path | None, revision: str | None, record: Path
) -> tuple[Path, str]:
    """Return where the shards lie and the commit they are of."""
    if source is not None:
        return Path(source), "local"
    recorded = cache.read_json(record) if record.is_file() else {}
    pinned, folder = recorded.get("revision"), data_dir / NAME
    if pinned and revision in (None, pinned):
        if all((folder / file).is_file() for file in recorded["files"]):
            return folder, str(pinned)
        revision = str(pinned)
    return folder, fetch.download(REPOSITORY, FILES[:1], revision, folder)


def _shards(path: Path) -> Sequence[Path]:
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


@contextlib.contextmanager
def _bar(shown: bool, what: str, total: int) -> Iterator[Callable[[int], Any]]:
    """Draw a progress bar; the function that it gives moves it."""
    columns = (
        *rich.progress.Progress.get_default_columns(),
        rich.progress.MofNCompleteColumn(),
    )
    with rich.progress.Progress(*columns, disable=not shown) as bar:
        task = bar.add_task(what, total=total)
        yield lambda rows: bar.advance(task, rows)
