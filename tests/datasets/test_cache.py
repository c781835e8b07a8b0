"""A dataset loaded: its table and the embeddings that belong to it, or what is wrong with them."""

import re

import dataset_files as schemas
import numpy as np
import polars as pl
import pytest

from cqbjax import datasets as ds


@pytest.mark.slow
def test_mmlu_pro_drops_are_counted_and_embeddings_follow(shared_data):
    table, embeddings = ds.load_dataset("mmlu_pro", shared_data)
    assert table.performance.shape == (12002, 28)
    assert "DeepSeek-Coder-V2" not in table.servers
    assert table.notes == (
        "dropped server DeepSeek-Coder-V2 (1,681 scores missing)",
        "dropped 30 prompts with a missing score",
    )
    frame = pl.read_parquet(shared_data / "mmlu_pro" / "mmlu_pro.parquet")
    original = np.load(shared_data / "mmlu_pro" / ds.catalogue.EMBEDDINGS_FILE)
    for row in (0, 6000, 12001):
        old = frame["prompt_id"].to_list().index(table.prompt_ids[row])
        np.testing.assert_array_equal(embeddings[row], original[old].astype(np.float32))
        for server in (table.servers[0], "jamba-1.5-large"):
            j = table.servers.index(server)
            assert table.performance[row, j] == frame[f"score|{server}"][old]


@pytest.mark.slow
def test_load_routerbench_gives_the_stored_embeddings(shared_data):
    table, embeddings = ds.load_dataset("routerbench", shared_data)
    original = np.load(shared_data / "routerbench" / ds.catalogue.EMBEDDINGS_FILE)
    np.testing.assert_array_equal(embeddings, original.astype(np.float32))
    assert embeddings.dtype == np.float32
    assert "standing in" in table.proxy_note


def test_messages_name_the_command_as_the_user_started_it(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["cqbjax run"])
    with pytest.raises(ValueError, match="run cqbjax prepare_data data_dir=.* dataset=sprout"):
        ds.load_dataset("sprout", tmp_path)
    monkeypatch.setattr("sys.argv", ["scripts/run.py"])
    with pytest.raises(ValueError, match="run python scripts/prepare_data.py data_dir="):
        ds.load_dataset("sprout", tmp_path)


def test_load_refuses_missing_data_and_wrong_embeddings(tmp_path):
    with pytest.raises(ValueError, match="dataset must be one of routerbench, mmlu_pro"):
        ds.load_dataset("nope", tmp_path)
    with pytest.raises(ValueError, match="dataset routerbnech is unknown: did you mean routerb"):
        ds.find_dataset("routerbnech")
    words = f"run python scripts/prepare_data.py data_dir={tmp_path} dataset="
    for name, ending in (("sprout", r"sprout\."), ("mmlu_pro", r"mmlu_pro source=PATH\.")):
        with pytest.raises(ValueError, match=re.escape(words) + ending):
            ds.load_dataset(name, tmp_path)
    folder = tmp_path / "routerbench"
    folder.mkdir()
    file = folder / ds.catalogue.EMBEDDINGS_FILE
    np.save(file, np.zeros((5, 4)))
    with pytest.raises(ValueError, match="no RouterBench file"):
        ds.load_dataset("routerbench", tmp_path)
    schemas.routerbench_frame(6).write_csv(folder / "made_train.csv")
    with pytest.raises(ValueError, match=r"shape \(5, 4\), but the table has 6 prompts"):
        ds.load_dataset("routerbench", tmp_path)
    np.save(file, np.full((6, 4), [[0, 0, np.inf, 0]]))
    with pytest.raises(ValueError, match="row 1 holds a number that is not finite"):
        ds.load_dataset("routerbench", tmp_path)
    np.save(file, np.eye(6))
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(ValueError, match="cut short"):
        ds.load_dataset("routerbench", tmp_path)
