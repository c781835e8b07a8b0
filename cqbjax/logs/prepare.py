"""A log prepared once: fetched, checked, read in a stream, its first prompts embedded, and cached.

`data_dir/cache/<content hash>/` holds `conversations.parquet`, `texts.parquet`, `embeddings.npy`
and `meta.json`, which is written last. Chains are linked when they are needed, since the rule is a
setting, and cached in the same folder, once for each rule.
"""

import functools
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from rich.progress import Progress

from cqbjax.core import files
from cqbjax.core.code import digest
from cqbjax.core.labels import GENERATED, PAPER, USER_DATA, command
from cqbjax.datasets import cache
from cqbjax.datasets.cache import EMBEDDINGS
from cqbjax.datasets.embeddings import embed, load_encoder, model_identity, read_embeddings
from cqbjax.datasets.fetch import VerifiedFiles, fetch
from cqbjax.datasets.prepare import PreparedEntry, build_entry
from cqbjax.datasets.readers.parquet_csv import check_columns, read_frame
from cqbjax.datasets.times import JUMP
from cqbjax.logs import conversations, linking, shards
from cqbjax.logs.conversations import TEXTS, RowCounts
from cqbjax.logs.linking import Chains, LinkingRule
from cqbjax.logs.shards import LogError

NAME, TITLE, REPOSITORY = "wildchat", "WildChat-1M", "allenai/WildChat-1M"
# Conversations of all models in WildChat-1M as published. The number per model, and the shards'
# checksums, come from the hub: a download is compared with them.
ROWS = 837_989
FILES = ("data/train-*", "train-*")
MODEL = "gpt-4-1106-preview"
ENCODER = "sentence-transformers/paraphrase-multilingual-mpnet-base-v2"
NONE = "none"  # in place of an encoder: no prompt is embedded
TRUTH = "truth.parquet"  # ground truth of generated shards
FORMAT = "4"  # raise when the same files would give other conversations
MAPPED = files.ARRAY._replace(load=functools.partial(np.load, mmap_mode="r"))


class Log(NamedTuple):
    """A prepared log.

    Attributes:
        frame: one row per conversation (`conversations.SCHEMA`); a generated log has a column
            `satisfaction`, the true probability that its answer satisfies the user.
        embeddings: [texts, d] float16 of the distinct first prompts; None: not embedded.
        name: name in tables.
        provenance: one of the constants in `core.labels`.
        proxy_note: for a proxy dataset, a text that names the dataset it replaces; otherwise empty.
        encoder: label of the encoder of the prompts.
        counts: number of rows by outcome.
        folder: folder of the cache entry.
    """

    frame: pl.DataFrame
    embeddings: np.ndarray | None
    name: str
    provenance: str
    proxy_note: str
    encoder: str
    counts: RowCounts
    folder: Path


def prepare(
    data_dir: Path, source: Path | None = None, model: str = MODEL, encoder: str = ENCODER,
    tokens: str = "bytes", revision: str | None = None, batch_size: int = 32, progress: bool = True,
    embeddings: Path | None = None,
) -> PreparedEntry:  # fmt: skip
    """Build a log's entry in `data_dir/cache`, unless it is there.

    Args:
        data_dir: the folder of data; a download goes to `data_dir/wildchat/`.
        source: a shard or a folder of them, instead of a download.
        model: LLM whose conversations are used.
        encoder: encoder of the first prompts, a hub name or a local folder; `none`: nothing is
            embedded, and only identical prompts are the same.
        tokens: how tokens are counted (`find_token_counter`).
        revision: the hub's commit; None is the newest, or the recorded one.
        batch_size: prompts per forward pass.
        progress: draw progress bars.
        embeddings: a file in place of the encoder: an `.npy` of [R, d], row for row with all rows
            of the shards, those of other models too; or a Parquet file with `conversation_hash` and
            `embedding`, in any order.

    Returns:
        The outcome. After a kill the next call continues with the prompts not yet embedded.

    Raises:
        ValueError: one sentence: the files, the model or the encoder is invalid.
    """
    counter = conversations.find_token_counter(tokens)
    identity, label = _identify_encoder(encoder, embeddings)
    got = fetch(
        NAME, data_dir, source, (REPOSITORY, FILES[:1], None), revision,
        functools.partial(_list_shards, model=model),
    )  # fmt: skip
    rows, note = shards.read_footers(got.files)
    origin = _find_origin(got, sum(rows), note)

    def write_files(folder: Path) -> dict[str, Any]:
        encodes = embeddings is None and encoder != NONE
        # Loaded before hours of reading, so that a missing encoder is an error now.
        loaded: Any = load_encoder(encoder, batch_size) if encodes else None
        with Progress(disable=not progress) as bar:
            task = bar.add_task("reading conversations", total=sum(rows))
            advance = functools.partial(bar.advance, task)
            counts = conversations.read_log(got.files, model, folder, counter, advance)
        vectors = None
        if embeddings is not None:
            frame = pl.read_parquet(folder / conversations.CONVERSATIONS)
            firsts = frame.group_by("text").agg(pl.col("row").first()).sort("text")
            vectors = _scale_to_unit(read_embeddings(
                embeddings, sum(rows), "the log has {} conversations", firsts["row"].to_numpy(),
                lambda: shards.read_ids(got.files), shards.ID,
            ))  # fmt: skip
        elif encodes:
            vectors = embed(
                tuple(pl.read_parquet(folder / TEXTS)["text"]),
                cache_dir=data_dir / cache.CACHE / "embeddings", model=encoder,
                batch_size=batch_size, progress=progress, load=lambda *_: loaded,
            )  # fmt: skip
        if vectors is not None:
            files.write(
                folder / EMBEDDINGS, files.ARRAY, np.asarray(vectors).astype(np.float16, copy=False)
            )
        if origin["provenance"] == GENERATED and (truth := got.root / TRUTH).is_file():
            if len(read_frame(truth)) != counts.rows:
                raise LogError(
                    f"{truth}: must have a row for each of the {counts.rows:,} of the log."
                )
            files.write_atomic(folder / TRUTH, truth.read_bytes())
        return {
            **origin, "model": model, "encoder": label, "tokens": tokens,
            "counts": counts._asdict(),
        }  # fmt: skip

    depends_on = (FORMAT, NAME, model, tokens, identity, *origin.values())
    return build_entry(data_dir, NAME, depends_on, got, write_files)


def _list_shards(path: Path, model: str) -> list[Path]:
    """Return the shards of a source, itself or the Parquet files of a folder, checked."""
    if not path.exists():
        raise LogError(f"{path}: no such file or folder.")
    found = [path]
    if path.is_dir():
        found = sorted({file for pattern in FILES for file in path.glob(pattern) if file.is_file()})
        found = found or sorted(file for file in path.glob("*.parquet") if file.name != TRUTH)
        if not found:
            raise LogError(f"{path}: no shard there, neither data/train-* nor *.parquet.")
    shards.check_shards(found, model)
    return found


def _identify_encoder(encoder: str, embeddings: Path | None) -> tuple[str, str]:
    """Return the cache key and the label of the encoder, or of what replaces it.

    Raises:
        LogError: the file of embeddings does not exist.
    """
    if embeddings is not None:
        if not embeddings.is_file():
            raise LogError(f"embeddings={embeddings}: no such file.")
        return f"embeddings {files.sha256(embeddings)}", f"own embeddings, {embeddings.name}"
    identity = model_identity(encoder)
    # Of a local folder the label has the name and its content.
    return identity, encoder if identity == encoder else f"{Path(encoder).name} {identity[:12]}"


def _find_origin(got: VerifiedFiles, rows: int, note: str) -> dict[str, str]:
    """Return a log's name, provenance and proxy note.

    It is the paper's if it was downloaded, each shard compared with the hub's checksum, or if it
    has as many rows as WildChat-1M.
    """
    path = got.path.resolve()
    name, provenance = path.name if path.is_dir() else path.stem, USER_DATA
    if note:
        name, provenance = "generated log", GENERATED
    elif got.revision != "local" or rows == ROWS:
        name, provenance = TITLE, PAPER
    return {"name": name, "provenance": provenance, "proxy_note": note}


def _scale_to_unit(vectors: np.ndarray) -> np.ndarray:
    """Return [n, d] float32 of length one; zeros stay zero."""
    largest = np.abs(vectors).max(axis=1, keepdims=True)
    scaled = vectors / np.where(largest > 0, largest, 1)
    return scaled / np.maximum(np.linalg.norm(scaled, axis=1, keepdims=True), 1)


def load_log(data_dir: Path) -> Log:
    """Return the log that was prepared last.

    Raises:
        ValueError: no log was prepared, or its entry is damaged or of an older version.
    """
    entry = cache.find_entry(data_dir, NAME)
    prepare_data = f"{command('prepare_data')} dataset={NAME} data_dir={data_dir}"
    if entry is None:
        raise LogError(
            f"{data_dir}: no conversation log is prepared there: {prepare_data} downloads "
            "WildChat-1M, and source=PATH reads a local copy."
        )
    folder, meta = entry.folder, entry.meta
    frame = pl.read_parquet(folder / conversations.CONVERSATIONS)
    if (truth := folder / TRUTH).is_file():
        known = read_frame(truth)
        check_columns(known.columns, ("row", "satisfaction"), truth)
        known = known.select("row", "satisfaction")
        frame = frame.join(known, on="row", how="left", maintain_order="left")
    # Mapped: linked chains and projected prompts are cached and need no embeddings.
    embedded = (folder / EMBEDDINGS).is_file()
    vectors = np.asarray(files.read(folder / EMBEDDINGS, MAPPED)) if embedded else None
    described = {key: meta[key] for key in ("name", "provenance", "proxy_note", "encoder")}
    return Log(frame, vectors, counts=RowCounts(**meta["counts"]), folder=folder, **described)


def describe(log: Log, chains: Chains, rule: LinkingRule) -> list[str]:
    """Describe a log and its chains in lines."""
    counts = log.counts
    sizes, numbers = (part.tolist() for part in np.unique(chains.lengths, return_counts=True))
    listed = ", ".join(
        f"{size}: {number:,}" for size, number in zip(sizes[:8], numbers, strict=False)
    )
    more = f", ... up to {sizes[-1]}" if len(sizes) > 8 else ""
    lines = [
        f"{counts.rows:,} conversations read, {counts.others:,} of other models; {counts.used:,} "
        f"kept of {counts.users:,} users with {counts.texts:,} distinct first prompts",
        f"chains by length: {listed}{more}",
        f"{chains.identical + chains.similar:,} pairs linked: {chains.identical:,} identical, "
        f"{chains.similar:,} by cosine >= {rule.threshold:g}; {chains.early:,} conversations asked "
        "the same before the earlier one had ended, and were not linked",
    ]
    dropped, jumps = sum(counts.dropped.values()), counts.jumps
    why = ", ".join(
        f"{reason} {count:,} (first: {counts.first[reason]})"
        for reason, count in sorted(counts.dropped.items())
    )
    unusual = {
        f"{dropped:,} rows dropped: {why}": dropped,
        f"the clock jumps {jumps:,} times by over {JUMP:,} mean intervals between conversations, "
        f"the first time before {counts.first.get('jumps')}": jumps,
        f"{counts.repaired:,} first prompts were not valid UTF-8: kept, repaired": counts.repaired,
        "no prompt is embedded: a policy sees the state of its chain alone": log.embeddings is None,
        f"note: {log.proxy_note}": log.proxy_note,
    }
    return lines + [line for line, holds in unusual.items() if holds]


def link(log: Log, rule: LinkingRule) -> Chains:
    """Link a prepared log's conversations (`link_conversations`), once for each rule."""
    key = files.hash_parts(repr(rule), digest([linking.__name__]))
    file = log.folder / "chains" / f"{key}.npz"
    arrays = files.load_or_compute(
        file,
        lambda: linking.link_conversations(log.frame, log.embeddings, rule)._asdict(),
        files.ARRAYS,
    )
    counts = (int(arrays[name]) for name in Chains._fields[2:])
    return Chains(arrays["members"], arrays["first"], *counts)
