"""Helpers of tests of conversation logs; run by itself, it times linking.

Usage: `log_files.py 1000000 20000`.

The numbers are the log's conversations and those of its heaviest user.
"""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from cqbjax.logs import prepare

SECOND = 1_000_000


def by_words(prompts):
    """Embed words without regard to blanks: [P] -> [P, 256], unit norm."""
    rows = np.zeros((len(prompts), 256))
    for row, prompt in zip(rows, prompts, strict=True):
        for word in prompt.split():
            row += np.random.default_rng(list(word.encode())).normal(size=256)
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)


def prepare_log(data_dir, source, encoder="words", encode=by_words, **more):
    """Prepare a log with a made-up encoder in place of one that is loaded."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prepare, "load_encoder", lambda *_: encode)
        return prepare.prepare(data_dir, source, encoder=encoder, progress=False, **more)


def heavy(conversations, of_one, dim):
    """Return a log of users with six conversations each and one with many, and its embeddings.

    Nobody shares a text; a fifth of a user's are close to the one before, a tenth are the same.
    """
    draw = np.random.default_rng(0)
    user = np.concatenate([np.zeros(of_one, int), 1 + np.arange(conversations - of_one) // 6])
    kind = draw.uniform(size=conversations)
    kind[np.flatnonzero(np.diff(user, prepend=-1))] = 1
    text = np.cumsum(kind >= 0.1) - 1
    close = np.flatnonzero((kind >= 0.1) & (kind < 0.3))
    vectors = np.empty((text[-1] + 1, dim), np.float16)
    for block in np.array_split(
        vectors, 1 + len(vectors) // 10_000
    ):  # float32 of all would be more
        block[:] = draw.standard_normal(block.shape, np.float32) / dim**0.5
    for i in close:
        vectors[text[i]] = vectors[text[i - 1]] + 0.05 * draw.standard_normal(dim) / dim**0.5
    arrival = np.sort(draw.integers(0, 10**7, conversations)) * SECOND
    ended = arrival + draw.integers(1, 90, conversations) * SECOND
    order = draw.permutation(conversations)
    columns = {"user": user, "text": text, "arrival": arrival, "ended": ended}
    frame = pl.DataFrame({name: column[order] for name, column in columns.items()})
    return frame.with_row_index("row").cast({"row": pl.Int64}), vectors


if __name__ == "__main__":
    import sys
    import time

    from cqbjax.logs import linking

    frame, vectors = heavy(*map(int, sys.argv[1:3]), 768)
    begun, before = time.perf_counter(), time.process_time()
    made = linking.link_conversations(frame, vectors, linking.LinkingRule())
    spent, on_cores = time.perf_counter() - begun, time.process_time() - before
    # What getrusage tells begins with the memory of the process that started this one.
    status = Path("/proc/self/status").read_text()
    peak = int(status.partition("VmHWM:")[2].split()[0]) / 2**20
    print(
        f"{frame.height:,} conversations, {len(vectors):,} texts, {made.identical:,} + "
        f"{made.similar:,} links: {spent:.1f} s, {on_cores:.1f} s of all cores, peak memory "
        f"{peak:.2f} GiB with the log"
    )
