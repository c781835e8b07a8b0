"""Preparing a dataset: from a stand-in of the hub, from a path, twice, killed, damaged."""

import hashlib
import http.server
import json
import os
import pathlib
import subprocess
import sys
import threading

import numpy as np
import pytest

from cqbjax import datasets as ds
from cqbjax.datasets import cache
from cqbjax.datasets import made_up as schemas
from cqbjax.datasets.prepare import prepare

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
COMMIT = "0123456789abcdef0123456789abcdef01234567"
pytest.importorskip("huggingface_hub", reason="the extra 'embed' is not installed")


def embedder(prompts):
    rows = [hashlib.sha256(prompt.encode()).digest()[:8] for prompt in prompts]
    return np.array([list(row) for row in rows], float) / 255


class Hub(http.server.ThreadingHTTPServer):
    """Speaks the few words of the hub's protocol that one dataset needs."""

    def __init__(self, folder: pathlib.Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = {
            file.relative_to(folder).as_posix(): file.read_bytes()
            for file in folder.rglob("*")
            if file.is_file()
        }
        self.digests = {k: hashlib.sha256(v).hexdigest() for k, v in self.files.items()}
        self.sizes = {k: len(v) for k, v in self.files.items()}
        self.downloads: list[str] = []


class Handler(http.server.BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.reply(body=True)

    def do_HEAD(self):
        self.reply(body=False)

    def reply(self, body: bool) -> None:
        path = self.path.split("?")[0]
        if path.startswith("/api/datasets/"):
            siblings = [
                {"rfilename": name, "size": self.server.sizes[name],
                 "lfs": {"sha256": digest, "size": self.server.sizes[name], "pointerSize": 130}}
                for name, digest in self.server.digests.items()
            ]  # fmt: skip
            content = {"_id": "1", "id": "made/up", "sha": COMMIT, "siblings": siblings}
            return self.send(
                json.dumps(content).encode(), body, {"Content-Type": "application/json"}
            )
        name = path.split(f"/resolve/{COMMIT}/")[-1]
        if name not in self.server.files:
            self.send_response(404)
            return self.end_headers()
        if body:
            self.server.downloads.append(name)
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{self.server.digests[name]}"'}
        return self.send(self.server.files[name], body, headers)

    def send(self, content: bytes, body: bool, headers: dict[str, str]) -> None:
        self.send_response(200)
        for key, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(key, value)
        self.end_headers()
        if body:
            self.wfile.write(content)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    upstream = tmp_path / "upstream"
    upstream.mkdir()
    schemas.write_sprout(upstream)
    server = Hub(upstream)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_address[1]}")
    for name in (
        "http_proxy",
        "https_proxy",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "all_proxy",
        "ALL_PROXY",
    ):
        monkeypatch.delenv(name, raising=False)
    yield server
    server.shutdown()
    server.server_close()


def run(data_dir, name="sprout", **more):
    return prepare(name, data_dir, embedder=embedder, progress=False, **more)


def test_downloads_at_one_commit_builds_once_and_then_does_nothing(hub, tmp_path):
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


def test_a_download_that_differs_from_the_hubs_record_is_refused(hub, tmp_path):
    name = "data/test-00000-of-00001.parquet"
    whole = hub.files[name]
    hub.files[name] = bytes([whole[0] ^ 1]) + whole[1:]
    with pytest.raises(ds.TableError, match="test-00000.*checksum mismatch"):
        run(tmp_path / "data")
    hub.files[name] = whole[:-20]
    with pytest.raises(ds.TableError, match="test-00000.*(cut short|cannot be downloaded)"):
        run(tmp_path / "data")
    assert not (tmp_path / "data" / "sprout" / name).exists()
    hub.files[name] = whole
    hub.downloads.clear()
    assert run(tmp_path / "data").built
    assert hub.downloads == [name], "what came whole must not be fetched again"


def test_damage_after_the_first_build_is_noticed(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    schemas.write_sprout(source)
    first = run(tmp_path / "data", source=source)
    file = source / "data" / "test-00000-of-00001.parquet"
    whole = file.read_bytes()
    file.write_bytes(whole[:-100])
    with pytest.raises(ds.TableError, match="cut short or changed"):
        run(tmp_path / "data", source=source)
    file.write_bytes(whole[:-1] + b"x")
    with pytest.raises(ds.TableError, match="checksum mismatch"):
        run(tmp_path / "data", source=source)
    file.write_bytes(whole)
    assert run(tmp_path / "data", source=source) == first._replace(built=False)


def test_a_killed_build_leaves_nothing_to_load_and_resumes(tmp_path, monkeypatch):
    source = tmp_path / "source"
    source.mkdir()
    schemas.write_embedllm(source)
    write_json = cache.write_json

    def killed(path, content):
        if path.name == "meta.json":
            raise KeyboardInterrupt
        write_json(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(cache, "write_json", killed)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "data", "embedllm", source=source)
    with pytest.raises(ds.TableError, match="nothing prepared"):
        ds.load_dataset("embedllm", tmp_path / "data")
    assert run(tmp_path / "data", "embedllm", source=source).built
    table, _ = ds.load_dataset("embedllm", tmp_path / "data")
    twin = ds.read_embedllm(source)
    assert (table.prompts, table.servers) == (twin.prompts, twin.servers)
    np.testing.assert_array_equal(table.cost, twin.cost)


def test_the_script_end_to_end(shared_data, tmp_path):
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
    twin, given = ds.load_dataset("routerbench", shared_data)
    assert (table.prompt_ids, table.stand_in, table.notes) == (
        twin.prompt_ids,
        twin.stand_in,
        twin.notes,
    )
    np.testing.assert_array_equal(table.cost, twin.cost)
    np.testing.assert_array_equal(embeddings, given)
    bad = script("dataset=mmlu_pro", "source=absent")
    assert bad.returncode == 2
    assert "absent: no such file" in bad.stderr
    assert len(bad.stderr.strip().splitlines()) == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["data"]
