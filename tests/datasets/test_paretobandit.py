"""The table that comes with the package, and the Python package that it was made of."""

import hashlib
import importlib.util
import json
import os
from pathlib import Path

import numpy as np
import pytest

from cqbjax.datasets import load_dataset
from cqbjax.datasets.prepare import prepare
from cqbjax.datasets.table import TableError


def test_paretobandit_table_is_part_of_the_package(tmp_path):
    """In an empty folder, with nothing prepared and no hub asked."""
    table, embeddings = load_dataset("paretobandit", tmp_path / "nothing")
    assert (table.num_prompts, table.num_servers, table.proxy_note) == (3609, 3, "")
    assert table.servers == ("gemini-2.5-pro", "llama-3.1-8b-instruct", "mistral-large-2512")
    assert embeddings.shape == (3609, 384)
    np.testing.assert_allclose(np.linalg.norm(embeddings, axis=1), 1, atol=1e-3)
    np.testing.assert_allclose(table.performance.mean(axis=0), [0.934, 0.791, 0.924], atol=1e-3)
    np.testing.assert_allclose(table.cost.mean(axis=0), [1.5e-2, 2.9e-5, 5.2e-4], rtol=0.02)


@pytest.mark.slow
def test_shipped_table_matches_the_paretobandit_package(tmp_path):
    found = importlib.util.find_spec("pareto_bandit")
    if found is None and not os.environ.get("CI"):
        pytest.skip("its package is not installed: pip install paretobandit")
    examples = Path(found.origin).parent / "data" / "examples"
    # A prompt may hold characters that `splitlines` takes for the end of a line.
    texts = (examples / name for name in ("val.jsonl", "test_holdout.jsonl"))
    rows = [json.loads(row) for text in texts for row in text.read_text().split("\n") if row]
    shipped, _ = load_dataset("paretobandit", tmp_path)
    assert shipped.prompts == tuple(row["prompt"] for row in rows)
    assert shipped.origins == tuple(row["source"] for row in rows)
    ids = (hashlib.sha256(row["prompt"].encode()).hexdigest()[:16] for row in rows)
    assert shipped.prompt_ids == tuple(ids)
    arms = [{name.rpartition("/")[2]: arm for name, arm in row["arms"].items()} for row in rows]
    assert all(sorted(row) == list(shipped.servers) for row in arms)
    for field, values in (("reward", shipped.performance), ("cost", shipped.cost)):
        cells = [[row[server][field] for server in shipped.servers] for row in arms]
        np.testing.assert_array_equal(values, cells)


def test_paretobandit_needs_no_preparation(tmp_path):
    with pytest.raises(TableError, match="paretobandit comes with cqbjax and needs no preparing"):
        prepare("paretobandit", tmp_path)
