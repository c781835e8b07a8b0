"""Preparing a dataset: from a local hub, from a path, twice, killed, damaged."""

import hashlib
import os
import pathlib
import re
import subprocess
import sys

import dataset_files as schemas
import hydra
import numpy as np
import omegaconf
import polars as pl
import pytest
from composing import compose_config, run_command
from hub import COMMIT, serving
from matplotlib.text import Text
from tiers import cases

from cqbjax import datasets as ds
from cqbjax import results
from cqbjax.cli import _compose, prepare_data
from cqbjax.core import files
from cqbjax.datasets import embeddings as embeddings_of
from cqbjax.datasets.embeddings import read_embeddings
from cqbjax.datasets.prepare import prepare
from cqbjax.datasets.readers import prices
from cqbjax.experiments import configs
from cqbjax.figures.sweeps import draw_over_keys
from cqbjax.results.metrics import find_recorded

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
pytest.importorskip("huggingface_hub", reason="the extra 'download' is not installed")


def embedder(prompts):
    rows = [hashlib.sha256(prompt.encode()).digest()[:8] for prompt in prompts]
    return np.array([list(row) for row in rows], float) / 255


@pytest.fixture
def hub(tmp_path, monkeypatch):
    upstream = tmp_path / "upstream"
    upstream.mkdir()
    schemas.write_sprout(upstream)
    with serving(upstream, monkeypatch) as server:
        yield server


def run(data_dir, name="sprout", **more):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embeddings_of, "load_encoder", lambda *_: embedder)
        return prepare(name, data_dir, progress=False, **more)


@pytest.mark.slow
def test_preparing_downloads_one_commit_and_builds_once(hub, tmp_path):
    data_dir = tmp_path / "data"
    first = run(data_dir)
    assert (first.built, first.revision) == (True, COMMIT)
    assert sorted(hub.downloads) == sorted(hub.files)
    table, embeddings = ds.load_dataset("sprout", data_dir)
    assert table.performance.shape == (16, 14)
    assert table.name == "SPROUT (synthetic)"
    np.testing.assert_allclose(embeddings, embedder(table.prompts), atol=1e-3)
    stamps = {file: file.stat().st_mtime_ns for file in data_dir.rglob("*")}
    hub.downloads.clear()
    hub.server_close()  # a second call must not even ask
    assert run(data_dir) == first._replace(built=False)
    assert {file: file.stat().st_mtime_ns for file in data_dir.rglob("*")} == stamps
    assert hub.downloads == []


def test_downloads_with_a_wrong_checksum_are_rejected(hub, tmp_path):
    name = "data/test-00000-of-00001.parquet"
    whole = hub.files[name]
    hub.files[name] = bytes([whole[0] ^ 1]) + whole[1:]
    with pytest.raises(ds.TableError, match="test-00000.*checksum mismatch"):
        run(tmp_path / "data")
    hub.files[name] = whole[:-20]
    with pytest.raises(ds.TableError, match="test-00000.*(checksum mismatch|cannot be downloaded)"):
        run(tmp_path / "data")
    assert not (tmp_path / "data" / "sprout" / name).exists()
    hub.files[name] = whole
    hub.downloads.clear()
    assert run(tmp_path / "data").built
    assert hub.downloads == [name], "what came whole must not be fetched again"


def test_files_changed_on_disk_are_downloaded_again(hub, tmp_path):
    bad, changed = "data/test-00000-of-00001.parquet", "data/train-00000-of-00001.parquet"
    whole = hub.files[bad]
    hub.files[bad] = bytes([whole[0] ^ 1]) + whole[1:]
    with pytest.raises(ds.TableError, match="test-00000.*checksum mismatch"):
        run(tmp_path / "data")
    hub.files[bad] = whole
    hub.downloads.clear()
    # The client's own notes say of this file that it is the hub's.
    file = tmp_path / "data" / "sprout" / changed
    before = file.stat()
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert run(tmp_path / "data").built
    assert sorted(hub.downloads) == [bad, changed]


@pytest.mark.slow
def test_interrupted_downloads_resume(hub, tmp_path, monkeypatch):
    name = "data/train-00000-of-00001.parquet"
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 500)
    hub.cut[name] = 1000
    assert run(tmp_path / "data").built
    assert hub.ranges == [(name, "bytes=1000-")] and hub.downloads.count(name) == 1


def test_lost_connections_to_the_hub_are_reported_in_one_sentence(hub, tmp_path):
    hub.listed = False
    (tmp_path / "data" / "sprout").mkdir(parents=True)
    (tmp_path / "data" / "sprout" / "notes.txt").write_text("the user's own")
    with pytest.raises(ds.TableError, match="give source=PATH where there is no network|not there"):
        run(tmp_path / "data")
    assert (tmp_path / "data" / "sprout" / "notes.txt").is_file()
    hub.listed = True
    assert run(tmp_path / "data").built


def test_small_files_are_verified_by_their_git_hash(hub, tmp_path):
    name = "data/test-00000-of-00001.parquet"
    hub.small.add(name)
    whole = hub.files[name]
    hub.files[name] = bytes([whole[0] ^ 1]) + whole[1:]
    with pytest.raises(ds.TableError, match="test-00000.*checksum mismatch, git-sha1 .* the hub"):
        run(tmp_path / "data")
    assert not (tmp_path / "data" / "sprout" / name).exists()
    hub.files[name] = whole
    assert run(tmp_path / "data").built


def test_downloads_default_to_the_commit_of_the_catalogue(tmp_path, monkeypatch):
    asked = []

    def download(repository, patterns, revision, folder):
        asked.append(revision)
        schemas.write("embedllm", folder, 12)
        return revision or COMMIT

    monkeypatch.setattr("cqbjax.datasets.fetch.download", download)
    pin = ds.find_dataset("embedllm").revision
    assert re.fullmatch("[0-9a-f]{40}", pin) and re.fullmatch(
        "[0-9a-f]{40}", ds.find_dataset("routerbench").revision
    )
    run(tmp_path / "a", "embedllm")
    run(tmp_path / "a", "embedllm")
    run(tmp_path / "b", "embedllm", revision="other")
    assert run(tmp_path / "b", "embedllm").revision == "other", (
        "the first build's commit is the pin"
    )
    assert asked == [pin, "other"]


@pytest.mark.slow
def test_another_local_path_has_an_entry_of_its_own(tmp_path):
    runs = []
    for count in (12, 16, 12):
        source = tmp_path / f"made-up-{count}"
        schemas.write("sprout", source, count)
        runs.append(run(tmp_path / "data", source=source))
        assert ds.load_dataset("sprout", tmp_path / "data")[0].num_prompts == count
    assert [done.built for done in runs] == [True, True, False]


@pytest.mark.slow
def test_user_defined_price_lists_change_the_cache_key(tmp_path):
    source, own = tmp_path / "data" / "embedllm", tmp_path / "own.csv"
    schemas.write("embedllm", source, 12)
    lines = prices.shipped_prices("embedllm").read_text().splitlines()
    dearer = [line.replace("microsoft/phi-2,0.1,0.1", "microsoft/phi-2,4,10") for line in lines]
    own.write_text("\n".join(dearer) + "\n")
    # Embeddings beside the files are read with the shipped prices until something is prepared.
    np.save(source / ds.catalogue.EMBEDDINGS_FILE, np.eye(12))
    shipped = run(tmp_path / "data", "embedllm", source=source)
    replaced = run(tmp_path / "data", "embedllm", source=source, prices=own)
    assert replaced.built and replaced.key != shipped.key
    table, _ = ds.load_dataset("embedllm", tmp_path / "data")
    assert table.cost[0, table.servers.index("microsoft/phi-2")] == pytest.approx(7e-3)
    assert run(tmp_path / "data", "embedllm", source=source) == shipped._replace(built=False)
    table, _ = ds.load_dataset("embedllm", tmp_path / "data")
    assert table.cost[0, table.servers.index("microsoft/phi-2")] == pytest.approx(1e-4)
    with pytest.raises(ds.TableError, match="prices=absent.csv: no such file"):
        run(tmp_path / "data", "embedllm", source=source, prices="absent.csv")
    with pytest.raises(ds.TableError, match="dataset routerbench has its costs in its own files"):
        run(tmp_path / "data", "routerbench", source=source, prices=own)


def own_frame(count=30):
    rng = np.random.default_rng(0)
    frame = pl.DataFrame(
        {"prompt_id": [f"q{k}" for k in range(count)], "prompt": schemas.prompts(count)}
    ).with_columns(pl.lit("mine").alias("source"))
    for llm in ("a", "b", "c"):
        frame = frame.with_columns(
            pl.Series(f"score|{llm}", rng.random(count)),
            pl.Series(f"cost|{llm}", rng.random(count)),
        )
    few = pl.when(pl.int_range(pl.len()) < 5).then(pl.col("score|c"))
    one = pl.when(pl.int_range(pl.len()) != 7).then(pl.col("score|a"))
    return frame.with_columns(few.alias("score|c"), one.alias("score|a"))


def test_user_defined_tables_drop_rows_only_on_request(tmp_path):
    file = tmp_path / "table.csv"
    own_frame().write_csv(file)
    message = r"table.csv: row 6 \(prompt id 'q5'\), column 'score\|c' is missing"
    with pytest.raises(ds.TableError, match=message):
        run(tmp_path / "data", ds.user_table("mine"), source=file)
    assert not (tmp_path / "data").exists(), "what is refused leaves nothing behind"
    done = run(tmp_path / "data", ds.user_table("mine", 0.9, True), source=file)
    assert done.built
    table, embeddings = ds.load_dataset("mine", tmp_path / "data")
    assert (table.name, table.servers, table.num_prompts) == ("mine", ("a", "b"), 29)
    assert table.notes == (
        "dropped server c (25 scores missing)", "dropped 1 prompts with a missing score",
    )  # fmt: skip
    np.testing.assert_allclose(embeddings, embedder(table.prompts), atol=1e-3)
    for wrong in ("sprout", "../x", ""):
        with pytest.raises(ValueError, match=f"name={wrong} must be letters"):
            ds.user_table(wrong)
    with pytest.raises(ds.TableError, match="is a folder, source must be one .parquet or .csv"):
        run(tmp_path / "data", ds.user_table(), source=tmp_path)
    with pytest.raises(ds.TableError, match="no download, give source=PATH"):
        run(tmp_path / "data", ds.user_table())
    with pytest.raises(ds.TableError, match=f"data_dir={tmp_path} dataset=compact name=compact"):
        ds.load_dataset("compact", tmp_path)


def own_embeddings(count=30, dim=16):
    """Rows of unit length that say which row they are."""
    rows = np.random.default_rng(1).normal(size=(count, dim))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.mark.parametrize("kind", ("float16", "float32", "float64", ">f8"))
def test_embeddings_of_a_table_are_dropped_with_their_rows(kind, tmp_path, monkeypatch):
    table_file, file = tmp_path / "table.csv", tmp_path / "own.npy"
    frame, original = own_frame(), own_embeddings().astype(kind)
    frame.write_csv(table_file)
    np.save(file, original)

    def refuse(*_):
        raise AssertionError("the encoder was asked")

    def build(file):
        monkeypatch.setattr(embeddings_of, "load_encoder", refuse)
        entry = ds.user_table("mine", 0.9, True)
        return prepare(entry, tmp_path / "data", table_file, embeddings=file)

    first = build(file)
    table, embeddings = ds.load_dataset("mine", tmp_path / "data")
    remaining = [frame["prompt_id"].to_list().index(name) for name in table.prompt_ids]
    assert remaining == [*range(7), *range(8, 30)]
    np.testing.assert_array_equal(embeddings, original[remaining].astype(np.float32))
    assert embeddings.dtype == np.float32 and len(table.notes) == 2
    assert build(file) == first._replace(built=False)
    # Another file is another entry, whatever it is called.
    np.save(file, 3.0 * original)
    assert build(file).key != first.key
    table, embeddings = ds.load_dataset("mine", tmp_path / "data")
    np.testing.assert_array_equal(embeddings, (3.0 * original)[remaining].astype(np.float32))
    assert "embeddings have lengths up to 3" in table.notes[-1]


def test_embeddings_may_be_zero_and_have_bounded_length(tmp_path):
    file, original = tmp_path / "own.npy", own_embeddings()
    np.save(file, 0 * original)
    assert not read_embeddings(file, 30).any()
    original[4] *= 1e30
    np.save(file, original)
    with pytest.raises(ValueError, match=r"own.npy: row 5 has length .*e\+30, and at most 1000"):
        read_embeddings(file, 30)


def test_embeddings_with_ids_are_joined_by_them(tmp_path):
    table_file, file = tmp_path / "table.csv", tmp_path / "own.parquet"
    frame, original = own_frame(), own_embeddings()
    frame.write_csv(table_file)
    order = np.random.default_rng(0).permutation(30)
    whole = pl.DataFrame({"prompt_id": frame["prompt_id"], "embedding": original.tolist()})[order]

    def build(rows):
        rows.write_parquet(file)
        run(tmp_path / "data", ds.user_table("mine", 0.9, True), source=table_file, embeddings=file)
        return ds.load_dataset("mine", tmp_path / "data")[1]

    remaining = [*range(7), *range(8, 30)]
    np.testing.assert_array_equal(build(whole), original[remaining].astype(np.float32))
    wrong = {
        "lacks prompt_id 'q3': they must be those of the table": whole.filter(
            pl.col("prompt_id") != "q3"
        ),
        "has prompt_id 'x', unknown there": pl.concat([whole, whole[:1].with_columns(
            prompt_id=pl.lit("x"))]),
        "rows 1 and 31, column 'prompt_id': .* occurs twice": pl.concat([whole, whole[:1]]),
        "row 31 of 'embedding' must be as long as the first": pl.concat([whole, pl.DataFrame(
            {"prompt_id": "x", "embedding": [[1.0]]})]),
        "column 'embedding' is missing": whole.rename({"embedding": "vector"}),
    }  # fmt: skip
    for message, rows in wrong.items():
        with pytest.raises(ValueError, match=message):
            build(rows)


@pytest.mark.slow
def test_user_defined_embeddings_take_precedence_over_stored_ones(tmp_path):
    source, file = tmp_path / "files", tmp_path / "own.npy"
    schemas.write("embedllm", source, 12)
    np.save(source / ds.catalogue.EMBEDDINGS_FILE, np.eye(12))
    np.save(file, own_embeddings(12, 3))
    for own, expected in ((None, np.eye(12)), (file, own_embeddings(12, 3))):
        assert run(tmp_path / "data", "embedllm", source=source, embeddings=own).built
        embeddings = ds.load_dataset("embedllm", tmp_path / "data")[1]
        np.testing.assert_array_equal(embeddings, expected.astype(np.float32))


ALLOWED = r"float16, float32 or float64 of shape \(30, d\)"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (np.ones((29, 4)), rf"float64 of shape \(29, 4\), but the table has 30 prompts.*{ALLOWED}"),
        (np.ones(30), rf"shape \(30,\), but the table has 30 prompts.*{ALLOWED}"),
        (np.ones((30, 0)), rf"shape \(30, 0\).*{ALLOWED}"),
        (np.ones((30, 4, 1)), rf"shape \(30, 4, 1\).*{ALLOWED}"),
        (np.ones((30, 4), int), rf"are int64 of shape \(30, 4\).*{ALLOWED}"),
        (np.full((30, 4), "1"), rf"are <U1 of shape \(30, 4\).*{ALLOWED}"),
        (np.full((30, 4), None), "not readable as an .npy file of numbers"),
        (np.where(np.arange(30)[:, None] == 7, np.nan, np.ones((30, 4))), "row 8 holds a number"),
        (np.full((30, 4), 1e300), "row 1 holds a number that is not finite in float32"),
        (
            b"0.1,0.2\n0.3,0.4\n",
            r"not readable as an \.npy file.*: save one array \[P, d\] of float16",
        ),
        (b"", r"not readable as an \.npy file"),
        (None, r"embeddings=\S*own\.npy: no such file"),
    ],
)
def test_invalid_embeddings_are_reported_with_the_file(content, message, tmp_path):
    table_file, file = tmp_path / "table.csv", tmp_path / "own.npy"
    own_frame().write_csv(table_file)
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif content is not None:
        np.save(file, content, allow_pickle=True)
    with pytest.raises(ds.TableError, match=message) as refused:
        run(tmp_path / "data", ds.user_table("mine", 0.9, True), source=table_file, embeddings=file)
    assert str(file) in str(refused.value) and "\n" not in str(refused.value)
    with pytest.raises(ds.TableError, match="no 'mine' is prepared"):
        ds.load_dataset("mine", tmp_path / "data")


def test_errors_of_some_embeddings_name_the_row_of_the_file(tmp_path):
    file = tmp_path / "own.npy"
    np.save(file, np.where(np.arange(30)[:, None] == 7, np.inf, np.ones((30, 4))))
    with pytest.raises(ds.TableError, match="own.npy: row 8 holds a number that is not finite"):
        read_embeddings(file, 30, rows=np.array([20, 9, 7]))
    assert read_embeddings(file, 30, rows=np.array([20, 9])).shape == (2, 4)


def test_truncated_or_zipped_embeddings_are_reported_in_one_sentence(tmp_path):
    file = tmp_path / "own.npy"
    np.save(file, np.eye(30))
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(ds.TableError, match="own.npy: not readable .* perhaps cut short"):
        read_embeddings(file, 30)
    np.savez(tmp_path / "own.npz", np.eye(30))
    with pytest.raises(ds.TableError, match="own.npz: not readable as an .npy file"):
        read_embeddings(tmp_path / "own.npz", 30)


WITHOUT_ENCODER = """
import sys

class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "sentence_transformers", "transformers"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, NotInstalled())

from cqbjax.cli.prepare_data import main

main()
"""


@pytest.mark.slow
def test_user_defined_embeddings_need_neither_encoder_nor_torch(tmp_path):
    own_frame().write_csv(tmp_path / "table.csv")
    np.save(tmp_path / "own.npy", own_embeddings())
    words = ("dataset=compact", "source=table.csv", "name=mine", "embeddings=own.npy",
             "drop_servers_below=0.9", "drop_incomplete_prompts=true", "data_dir=data")  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_ENCODER, *words],
        capture_output=True, text=True, cwd=tmp_path, timeout=120,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "29 prompts x 2 servers, 29 distinct embeddings of 16 dimensions" in done.stdout
    assert ds.load_dataset("mine", tmp_path / "data")[1].shape == (29, 16)


def command(*words):
    _compose.register_plugins(REPOSITORY / "conf" / "prepare")
    with hydra.initialize_config_dir(str(REPOSITORY / "conf" / "prepare"), version_base="1.3"):
        return configs.from_omegaconf(hydra.compose("config", words))


def entry(*words):
    return prepare_data._select_dataset(command(*words))


@pytest.mark.slow
def test_dropping_rows_can_be_requested_and_declined(tmp_path):
    listed = ds.find_dataset("mmlu_pro")
    asked = (listed.drop_servers_below, listed.drop_incomplete_prompts)
    assert asked == (0.99, True)
    cases = {
        (): asked,
        ("drop_servers_below=0.5",): (0.5, True),
        ("drop_servers_below=null", "drop_incomplete_prompts=false"): (None, False),
    }
    for words, drops in cases.items():
        one = entry("dataset=mmlu_pro", *words)
        assert (one.drop_servers_below, one.drop_incomplete_prompts) == drops
    assert entry("dataset=compact").drop_servers_below is None
    assert not entry("dataset=compact").drop_incomplete_prompts
    own_frame().write_parquet(tmp_path / "mmlu_pro.parquet")
    listed = entry("dataset=mmlu_pro", "drop_servers_below=0.9")  # one score of a is missing
    assert run(tmp_path / "data", listed, source=tmp_path).built
    table = ds.load_dataset("mmlu_pro", tmp_path / "data")[0]
    assert (table.servers, table.num_prompts) == (("a", "b"), 29)
    with pytest.raises(ds.TableError, match="'score|c' is missing"):
        run(tmp_path / "data", one, source=tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["embedllm", "sprout"])
def test_experiment_runs_on_a_dataset_downloaded_from_the_hub(name, tmp_path, monkeypatch):
    """From the download to the table, as a user does it: the real data cannot be had here."""
    schemas.write(name, tmp_path / "upstream", 200)
    np.save(tmp_path / "own.npy", embedder(schemas.prompts(200)))
    data = f"data_dir={tmp_path / 'data'}"
    with serving(tmp_path / "upstream", monkeypatch) as server:
        words = (f"dataset={name}", f"embeddings={tmp_path / 'own.npy'}", data)
        done = run_command("prepare_data", *words, f"revision={COMMIT}", "progress=false")
    assert done.returncode == 0, done.stderr
    assert "made-up content" in done.stdout.replace("\n", " ")
    assert sorted(server.downloads) == sorted(server.files)
    done = run_command(
        "run", f"experiment={name}", "policy=[optimal,acqb_cl,knn]", "K=1",
        "source.pool_size=60", "source.offline_size=120", "num_seeds=2", "horizon=40", data,
        f"results_dir={tmp_path}", f"cache_dir={tmp_path / 'fits'}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "made-up content" in (tmp_path / "tables" / f"{name}.md").read_text()


@pytest.mark.parametrize("share", cases(("0", "2", "true", "much"), ["2"]))
def test_invalid_split_shares_are_rejected_in_one_sentence(share):
    with pytest.raises(ValueError, match=r"drop_servers_below=\w+ must be a share in \(0, 1\]"):
        entry("dataset=mmlu_pro", f"drop_servers_below={share}")
    with pytest.raises(ValueError, match="drop_incomplete_prompts=1 must be true, false or"):
        entry("dataset=mmlu_pro", "drop_incomplete_prompts=1")


@pytest.mark.slow
def test_user_defined_tables_run_as_sources(tmp_path):
    file = tmp_path / "table.parquet"
    own_frame().drop("score|c", "cost|c").drop_nulls().write_parquet(file)
    run(tmp_path / "data", ds.user_table("mine"), source=file)
    words = ("source=compact", "source.dataset=mine", "name=mine", f"data_dir={tmp_path / 'data'}")
    config = compose_config("experiment=routerbench", *words)
    files = [REPOSITORY / "conf" / name for name in ("config.yaml", "prepare/config.yaml")]
    both = [omegaconf.OmegaConf.load(file).data_dir for file in files]
    source = hydra.utils.instantiate(config.source)
    assert (source.dataset, source.table.num_prompts, source.table.num_servers) == ("mine", 29, 2)
    assert source.describe(1, [0.5]).startswith(
        "mine: 29 prompts (9 in the pool of a run), 2 LLMs; "
    )
    expected = 0.01 + 0.98 * source.table.performance  # users of one's own table see no prices
    np.testing.assert_allclose(source.probabilities, expected)
    direct = ds.dataset_source("mine", tmp_path / "data")
    assert direct.queries.pool_size == source.queries.pool_size == 9
    np.testing.assert_array_equal(direct.probabilities, source.probabilities)
    paper = ds.dataset_source("mine", tmp_path / "data", rho=5.0, low=0.1, min_max=True)
    np.testing.assert_array_equal(
        paper.probabilities,
        ds.departure_probabilities(source.table.performance, source.table.cost),
    )
    assert both == ["data", "data"], "what the one script writes the other reads"


@pytest.mark.slow
def test_llm_names_stay_verbatim_everywhere(tmp_path):
    names = ['a, "b"', "$x$ | [red]", "été:smile:"]
    rows, draw = 30, np.random.default_rng(0)
    frame = pl.DataFrame({"prompt_id": [f"q{k}" for k in range(rows)], "source": ["s"] * rows,
                          "prompt": schemas.prompts(rows)})  # fmt: skip
    frame = frame.with_columns(
        pl.Series(f"{column}|{name}", values)
        for name in names
        for column, values in (("score", draw.integers(0, 2, rows)), ("cost", [0.5] * rows))
    )
    frame.write_csv(tmp_path / "own.csv")
    np.save(tmp_path / "own.npy", embedder(schemas.prompts(rows)))
    data = f"data_dir={tmp_path / 'data'}"
    done = run_command("prepare_data", "dataset=compact", f"source={tmp_path / 'own.csv'}", data,
                  f"embeddings={tmp_path / 'own.npy'}", "name=own")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "P(satisfied | grade 0) = 0.010; P(satisfied | grade 1) = 0.990" in done.stdout
    for name in names:
        grade = frame[f"score|{name}"].mean()
        line = next(line for line in done.stdout.splitlines() if line.strip().startswith(name))
        assert line.split()[-3:] == [f"{grade:.3f}", "0.5", f"{0.01 + 0.98 * grade:.3f}"]
    done = run_command(
        "run", "source=compact", "source.dataset=own", "policy=[random]", "num_seeds=2",
        "horizon=40", "arrival_rate=[0.2,0.3]", "record=[traffic]", "queries=true", "name=own",
        data, f"results_dir={tmp_path}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "30 prompts (10 in the pool of a run), 3 LLMs" in " ".join(done.stdout.split())
    points = results.load_points(tmp_path / "data" / "own")
    rows = results.tabulate_queries(points)
    assert set(rows["llm"].drop_nulls()) == {*names}
    for number, name in enumerate(names):
        assert set(rows.filter(server=number)["llm"]) == {name}
        assert find_recorded(points)[f"traffic_{number}"].long_name.endswith(f", {name}")
        figure = draw_over_keys(points, f"traffic_{number}", 40, ["arrival_rate"])
        figure.savefig(tmp_path / "own.png")
        assert any(name in text.get_text() for text in figure.findobj(Text))


def test_printed_arrival_rates_follow_the_settings_of_the_dataset(tmp_path):
    schemas.write("embedllm", tmp_path, 12)
    own = {"rho": 0, "low": 0.01, "min_max": False}
    for name, settings in (("embedllm", {"cost_rule": "none"}), ("sprout", {}), ("mine", own)):
        entry = ds.CATALOGUE.get(name) or ds.user_table(name)
        table = ds.find_dataset("embedllm").read(tmp_path, None)
        made, expected = (
            ds.departure_probabilities(table.performance, table.cost, **recipe)
            for recipe in (prepare_data._read_recipe(entry), settings)
        )
        np.testing.assert_array_equal(made, expected)


def test_damage_of_a_download_is_noticed_and_a_file_that_vanished_is_fetched_again(hub, tmp_path):
    first, name = run(tmp_path / "data"), "data/test-00000-of-00001.parquet"
    file = tmp_path / "data" / "sprout" / name
    whole = file.read_bytes()
    for damaged in (whole[:-100], whole[:-1] + b"x"):
        file.write_bytes(damaged)
        with pytest.raises(ds.TableError, match="test-00000.*checksum mismatch"):
            run(tmp_path / "data")
    file.unlink()
    hub.downloads.clear()
    assert run(tmp_path / "data") == first._replace(built=False)
    assert hub.downloads == [name] and file.read_bytes() == whole


def test_a_local_file_that_changed_is_read_again(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    schemas.write_sprout(source)
    first = run(tmp_path / "data", source=source)
    file = source / "data" / "test-00000-of-00001.parquet"
    whole = file.read_bytes()
    file.write_bytes(whole[:-100])
    with pytest.raises(ds.TableError, match="not readable, cut short"):
        run(tmp_path / "data", source=source)
    file.unlink()
    second = run(tmp_path / "data", source=source)
    assert second.built and second.key != first.key
    file.write_bytes(whole)
    assert run(tmp_path / "data", source=source) == first._replace(built=False)


@pytest.mark.slow
def test_killed_build_leaves_no_loadable_files_and_resumes(tmp_path, monkeypatch):
    source = tmp_path / "source"
    source.mkdir()
    schemas.write_embedllm(source)
    write_atomic = files.write_atomic

    def write_and_die(path, content):
        if path.name == "meta.json":
            raise KeyboardInterrupt
        write_atomic(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(files, "write_atomic", write_and_die)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "data", "embedllm", source=source)
    with pytest.raises(ds.TableError, match="nothing prepared"):
        ds.load_dataset("embedllm", tmp_path / "data")
    assert run(tmp_path / "data", "embedllm", source=source).built
    table, _ = ds.load_dataset("embedllm", tmp_path / "data")
    counterpart = ds.read_embedllm(source)
    assert (table.prompts, table.servers) == (counterpart.prompts, counterpart.servers)
    np.testing.assert_array_equal(table.cost, counterpart.cost)


@pytest.mark.slow
def test_prepare_data_script_runs_end_to_end(shared_data, tmp_path):
    def script(*words):
        return subprocess.run(
            [sys.executable, REPOSITORY / "scripts" / "prepare_data.py", *words],
            capture_output=True, text=True, cwd=tmp_path, timeout=120,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        )  # fmt: skip

    words = ("dataset=routerbench", f"source={shared_data / 'routerbench'}", "data_dir=data")
    first = script(*words)
    assert first.returncode == 0, first.stderr
    assert "RouterBench slice: built" in first.stdout
    assert "random routing serves 0.648" in first.stdout.replace("\n", " ")
    table, embeddings = ds.load_dataset("routerbench", tmp_path / "data")
    counterpart, original = ds.load_dataset("routerbench", shared_data)
    assert (table.prompt_ids, table.proxy_note, table.notes) == (
        counterpart.prompt_ids,
        counterpart.proxy_note,
        counterpart.notes,
    )
    np.testing.assert_array_equal(table.cost, counterpart.cost)
    np.testing.assert_array_equal(embeddings, original)
    bad = script("dataset=mmlu_pro", "source=absent")
    assert bad.returncode == 2
    assert "absent: no such file" in bad.stderr
    assert len(bad.stderr.strip().splitlines()) == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["data"]
