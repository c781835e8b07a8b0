"""Files: written whole or not at all, computed once, a damaged one named."""

import errno
import io
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from cqbjax.core import files


def hidden_files(folder):
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


@pytest.fixture
def squares(tmp_path):
    """A kept result: its file, how often it was computed, and how to ask for it."""
    path, computed = tmp_path / "kept" / "squares.npy", []

    def compute():
        computed.append(1)
        return np.arange(5) ** 2

    return path, computed, lambda: files.load_or_compute(path, compute)


def test_results_are_computed_once_and_then_read(squares):
    path, computed, ask = squares
    for _ in range(3):
        np.testing.assert_array_equal(ask(), [0, 1, 4, 9, 16])
    assert len(computed) == 1 and [file.name for file in path.parent.iterdir()] == [path.name]


def test_first_call_returns_the_stored_precision(tmp_path):
    def save(file, value):
        np.save(file, value.astype(np.float16))

    half = files.ARRAY._replace(save=save)
    first, second = (
        files.load_or_compute(tmp_path / "third.npy", lambda: np.array(1 / 3), half)
        for _ in range(2)
    )
    assert first == second == np.float16(1 / 3)


@pytest.mark.parametrize("content", [b"", b"no array", b"\x93NUMPY\x01\x00"])
def test_damaged_files_are_reported_and_preserved(squares, content):
    path, computed, ask = squares
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(ValueError, match="squares.npy: not readable, delete it to make it") as info:
        ask()
    assert "\n" not in str(info.value) and path.read_bytes() == content and not computed
    path.unlink()
    assert ask()[4] == 16


def test_a_truncated_file_is_damaged(squares):
    path, _, ask = squares
    ask()
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match="squares.npy: not readable"):
        ask()


def test_failed_computations_store_no_files(tmp_path):
    def fail(*_):
        raise RuntimeError("no")

    path = tmp_path / "x.npy"
    with pytest.raises(RuntimeError, match="no"):
        files.load_or_compute(path, fail)
    with pytest.raises(RuntimeError, match="no"):
        files.load_or_compute(path, lambda: np.zeros(2), files.ARRAY._replace(save=fail))
    assert not path.exists() and hidden_files(tmp_path) == []


def test_files_are_written_atomically(tmp_path, monkeypatch):
    target = tmp_path / "table.csv"
    files.write_atomic(target, b"old")

    def fail(*_):
        raise OSError("no")

    for name in ("replace", "fsync"):
        with monkeypatch.context() as patched:
            patched.setattr(os, name, fail)
            with pytest.raises(OSError, match="no"):
                files.write_atomic(target, b"new")
        assert target.read_bytes() == b"old" and hidden_files(tmp_path) == []


def test_write_errors_name_the_target_file(tmp_path):
    (tmp_path / "folder").mkdir()

    def raise_disk_full(file):
        raise OSError(errno.ENOSPC, "No space left on device")

    for name, content in (("folder", b""), ("full", raise_disk_full)):
        with pytest.raises(OSError) as error:
            files.write_atomic(tmp_path / name, content)
        assert (error.value.filename, error.value.filename2) == (str(tmp_path / name), None)
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_interrupted_writers_keep_the_old_file(tmp_path):
    target = tmp_path / "table.csv"
    files.write_atomic(target, b"old")

    def interrupt_writing(file: io.BufferedWriter):
        file.write(b"ne")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        files.write_atomic(target, interrupt_writing)
    assert target.read_bytes() == b"old" and hidden_files(tmp_path) == []


def test_only_missing_results_are_computed_and_killed_calls_resume(tmp_path):
    paths = {number: tmp_path / f"{number}.npy" for number in range(4)}
    asked = []

    def compute(missing, dies=False):
        asked.append(missing)
        for number in missing:
            if dies and number == 2:
                raise KeyboardInterrupt
            yield number, np.full(2, number)

    files.load_or_compute(paths[1], lambda: np.full(2, 1))
    with pytest.raises(KeyboardInterrupt):
        files.load_or_compute_all(paths, lambda missing: compute(missing, dies=True))
    for _ in range(2):
        loaded = files.load_or_compute_all(paths, compute)
        assert [int(loaded[number][0]) for number in paths] == [0, 1, 2, 3]
    assert asked == [[0, 2, 3], [2, 3]] and hidden_files(tmp_path) == []


def test_concurrent_writers_leave_one_complete_file(tmp_path):
    """Each writes half, waits for the other's half, and ends: as on two nodes of one home."""
    path, half = tmp_path / "big.npy", threading.Barrier(2, timeout=20)

    def writer(content):
        def write(file):
            file.write(content[:500])
            file.flush()
            half.wait()
            file.write(content[500:])

        return write

    contents = [bytes([letter]) * 1000 for letter in b"ab"]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda one: files.write_atomic(path, writer(one)), contents))
    assert path.read_bytes() in contents and hidden_files(tmp_path) == []
