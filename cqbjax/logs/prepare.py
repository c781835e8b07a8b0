"""A log prepared once: got, checked, read in a stream, its first prompts embedded, and kept.

`data_dir/cache/<content hash>/` holds `conversations.parquet`, `texts.parquet`, `embeddings.npy`
and `meta.json`, which is written last. Chains are linked when they are wanted, since the rule is a
setting, and kept there too: once for each rule.
"""

import functools
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from rich.progress import Progress

from cqbjax.core.code import digest
from cqbjax.core.files import (
    ARRAY,
    ARRAYS,
    content_key,
    memo,
    read,
    sha256,
    write,
    write_atomic,
)
from cqbjax.core.labels import GENERATED, OWN, PAPERS, command
from cqbjax.datasets import cache
from cqbjax.datasets.cache import EMBEDDINGS, PreparedEntry
from cqbjax.datasets.embeddings import embed, load_encoder, model_identity, read_embeddings
from cqbjax.datasets.fetch import VerifiedFiles, fetch
from cqbjax.datasets.prepare import Embed
from cqbjax.datasets.readers.parquet_csv import read_frame
from cqbjax.datasets.times import JUMP
from cqbjax.logs import linking, reading, shards
from cqbjax.logs.linking import Chains, Rule
from cqbjax.logs.reading import Reading
from cqbjax.logs.shards import LogError

NAME, TITLE, REPOSITORY = "wildchat", "WildChat-1M", "allenai/WildChat-1M"
# Conversations of all models in WildChat-1M as it is published. How many each model has, and the
# shards' checksums, the hub alone knows: a download is checked against them.
ROWS = 837_989
FILES = ("data/train-*", "train-*")
MODEL = "gpt-4-1106-preview"
ENCODER = "sentence-transformers/paraphrase-multilingual-mpnet-base-v2"
NONE = "none"  # in place of an encoder: no prompt is embedded
TRUTH = "truth.parquet"  # beside shards that were generated
FORMAT = "3"  # raise when the same files would give other conversations
MAPPED = ARRAY._replace(load=functools.partial(np.load, mmap_mode="r"))


class Log(NamedTuple):
    """A prepared log.

    Attributes:
        frame: one row a conversation (`reading.SCHEMA`); of a generated log also `planted`, the
            probability with which its user was satisfied.
        embeddings: [texts, d] float16 of the distinct first prompts; None where none was embedded.
        name: how it is called in tables.
        provenance: whose it is, of those in `core.labels`.
        stand_in: what it stands in for, in words; empty where it stands in for nothing.
        model: whose conversations they are.
        encoder: what the prompts were embedded by, in words.
        tokens: how they were counted.
        reading: what became of every row.
        folder: of its entry.
        digest: content hash of all that it was made from.
    """

    frame: pl.DataFrame
    embeddings: np.ndarray | None
    name: str
    provenance: str
    stand_in: str
    model: str
    encoder: str
    tokens: str
    reading: Reading
    folder: Path
    digest: str


def prepare(
    data_dir: Path, source: Path | None = None, model: str = MODEL, encoder: str = ENCODER,
    tokens: str = "bytes", revision: str | None = None, batch_size: int = 32, progress: bool = True,
    embedder: tuple[str, Embed] | None = None, embeddings: Path | None = None,
) -> PreparedEntry:  # fmt: skip
    """Build a log's entry in `data_dir/cache`, unless it is there.

    Args:
        data_dir: the folder of data; a download goes to `data_dir/wildchat/`.
        source: a shard or a folder of them, instead of a download; `truth.parquet` is none.
        model: whose conversations are kept.
        encoder: of the first prompts, a hub name or a local folder; `none`: nothing is embedded,
            and only identical prompts are the same.
        tokens: how tokens are counted (`reading.token_counter`).
        revision: the hub's commit; None is the newest, or the one recorded.
        batch_size: prompts a forward pass.
        progress: draw progress bars.
        embedder: in place of the encoder a name, which tells it from all others, and prompts [P] ->
            [P, d].
        embeddings: in place of both a file: an `.npy` of [R, d], row for row with all rows of the
            shards, those of other models too; or a Parquet file with `conversation_hash`
            and `embedding`, in any order.

    Returns:
        What was done. After a kill the next call goes on from what was embedded.

    Raises:
        ValueError: one sentence saying what is wrong with the files, the model or the encoder.
    """
    counter = reading.token_counter(tokens)
    identity, told = _encoder(encoder, embedder, embeddings)

    def inventory(path: Path) -> list[Path]:
        files = _shards(path)
        shards.check(files, model)
        return files

    got = fetch(NAME, data_dir, source, (REPOSITORY, FILES[:1], None), revision, inventory)
    whose = _whose(got)

    def embedded(folder: Path, encode: Embed | None) -> np.ndarray | None:
        if embeddings is not None:
            firsts = reading.load(folder).group_by("text").agg(pl.col("row").first()).sort("text")
            rows, of = shards.count(got.files), "the log has {} conversations"
            return _unit(read_embeddings(
                embeddings, rows, of, firsts["row"].to_numpy(), lambda: shards.ids(got.files),
                shards.ID,
            ))  # fmt: skip
        return None if encode is None else encode(tuple(reading.load_texts(folder)))

    def write_files(folder: Path) -> dict[str, Any]:
        encode = embedder[1] if embedder else None
        if encode is None and embeddings is None and encoder != NONE:
            # Before hours of reading: whether there is one.
            loaded, kept = load_encoder(encoder, batch_size), cache.cache_folder(data_dir)
            encode = functools.partial(
                embed, cache_dir=kept / "embeddings", model=encoder, batch_size=batch_size,
                progress=progress, load=lambda *_: loaded,
            )  # fmt: skip
        with Progress(disable=not progress) as bar:
            task = bar.add_task("reading conversations", total=shards.count(got.files))
            advance = functools.partial(bar.advance, task)
            said = reading.read_log(got.files, model, folder, counter, advance)
        vectors = embedded(folder, encode)
        if vectors is not None:
            write(folder / EMBEDDINGS, ARRAY, np.asarray(vectors).astype(np.float16, copy=False))
        if whose["provenance"] == GENERATED and (truth := got.root / TRUTH).is_file():
            if len(read_frame(truth)) != said.rows:
                raise LogError(
                    f"{truth}: must have a row for each of the {said.rows:,} of the log."
                )
            write_atomic(folder / TRUTH, truth.read_bytes())
        return {
            **whose, "model": model, "encoder": told, "tokens": tokens, "reading": said._asdict()
        }  # fmt: skip

    depends_on = (FORMAT, NAME, model, tokens, identity, *whose.values(), *got.contents)
    done = cache.build_entry(data_dir, NAME, depends_on, got.revision, write_files)
    got.write_record()
    return done


def _encoder(
    encoder: str, embedder: tuple[str, Embed] | None, embeddings: Path | None
) -> tuple[str, str]:
    """Return what tells what embeds from all else, and what it is called.

    Raises:
        LogError: there is no such file of embeddings.
    """
    if embeddings is not None:
        if not embeddings.is_file():
            raise LogError(f"embeddings={embeddings}: no such file.")
        return f"embeddings {sha256(embeddings)}", f"own embeddings, {embeddings.name}"
    if embedder is not None:
        return f"given {embedder[0]}", embedder[0]
    identity = model_identity(encoder)
    # A folder is known by what it holds: its name alone says little, its path nothing.
    return identity, encoder if identity == encoder else f"{Path(encoder).name} {identity[:12]}"


def _whose(got: VerifiedFiles) -> dict[str, str]:
    """Return a log's name, whose it is and what it stands in for.

    It is the paper's if it was downloaded, each shard checked against the hub's checksum, or if it
    has as many rows as WildChat-1M.
    """
    stand_in = shards.stand_in(got.files)
    if stand_in:
        return {"name": "generated log", "provenance": GENERATED, "stand_in": stand_in}
    if got.revision != "local" or shards.count(got.files) == ROWS:
        return {"name": TITLE, "provenance": PAPERS, "stand_in": ""}
    path = got.path.resolve()
    name = path.name if path.is_dir() else path.stem
    return {"name": name, "provenance": OWN, "stand_in": ""}


def _unit(vectors: np.ndarray) -> np.ndarray:
    """Return [n, d] float32 of length one, zeros as they are."""
    largest = np.abs(vectors).max(axis=1, keepdims=True)
    scaled = vectors / np.where(largest > 0, largest, 1)
    return scaled / np.maximum(np.linalg.norm(scaled, axis=1, keepdims=True), 1)


def load(data_dir: Path) -> Log:
    """Return the log that was prepared last.

    Raises:
        LogError: none was.
    """
    entry = cache.find_entry(data_dir, NAME)
    if entry is None:
        raise LogError(
            f"{data_dir}: no conversation log is prepared there: {command('prepare_data')} "
            f"dataset={NAME} data_dir={data_dir} downloads WildChat-1M, source=PATH reads a local "
            "copy, and made_up=N generates one."
        )
    folder, meta = entry.folder, entry.meta
    frame = reading.load(folder)
    if (folder / TRUTH).is_file():
        planted = pl.read_parquet(folder / TRUTH, columns=["row", "planted"])
        frame = frame.join(planted, on="row", how="left", maintain_order="left")
    there = (folder / EMBEDDINGS).is_file()
    # Mapped: chains that were linked before, and prompts that were projected, need none of it.
    vectors = np.asarray(read(folder / EMBEDDINGS, MAPPED)) if there else None
    said = {key: value for key, value in meta.items() if key != "reading"}
    read_so = Reading(**meta["reading"])
    return Log(frame, vectors, reading=read_so, folder=folder, digest=entry.key, **said)


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
        why = ", ".join(
            f"{reason} {count:,} (first: {said.first[reason]})"
            for reason, count in sorted(said.dropped.items())
        )
        lines.append(f"{dropped:,} rows dropped: {why}")
    if said.jumps:
        lines.append(
            f"the clock jumps {said.jumps:,} times by over {JUMP:,} mean intervals between "
            f"conversations, the first time before {said.first['jumps']}"
        )
    if said.repaired:
        lines.append(f"{said.repaired:,} first prompts were not valid UTF-8: kept, repaired")
    if log.embeddings is None:
        lines.append("no prompt is embedded: a policy sees the state of its chain alone")
    if log.stand_in:
        lines.append(f"note: {log.stand_in}")
    return lines


def link(log: Log, rule: Rule) -> Chains:
    """Link a prepared log's conversations (`linking.link`), once for each rule."""
    rule.check()
    key = content_key(repr(rule), digest([linking.__name__]))
    file = log.folder / "chains" / f"{key}.npz"
    made = memo(file, lambda: linking.link(log.frame, log.embeddings, rule)._asdict(), ARRAYS)
    counts = (int(made[name]) for name in Chains._fields[2:])
    return Chains(made["members"], made["first"], *counts)


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
