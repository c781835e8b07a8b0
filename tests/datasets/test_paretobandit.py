"""The real table in the box: it comes with the package, and is what its own package holds."""

import json
import os

import numpy as np
import pytest

from cqbjax.datasets import catalogue, load_dataset
from cqbjax.datasets.prepare import prepare
from cqbjax.datasets.readers.paretobandit import FILES, read_paretobandit
from cqbjax.datasets.table import TableError

ENTRY = catalogue.CATALOGUE["paretobandit"]


def line(prompt, **changed):
    arms = {
        f"maker/{name}": {"reward": reward, "cost": reward / 100, "near_best": True}
        for name, reward in (("small", 0.5), ("large", 0.75))
    }
    return {"prompt": prompt, "source": "arc", "difficulty": "hard", "arms": arms} | changed


def folder(tmp_path, *lines):
    (tmp_path / FILES[0]).write_text("".join(f"{one}\n" for one in lines))
    (tmp_path / FILES[1]).write_text(json.dumps(line("the last")) + "\n")
    return tmp_path


def test_examples_are_read_one_file_after_the_other(tmp_path):
    table = read_paretobandit(folder(tmp_path, json.dumps(line("one")), json.dumps(line("two"))))
    assert table.prompts == ("one", "two", "the last") and len(set(table.prompt_ids)) == 3
    assert table.servers == ("large", "small") and table.origins == ("arc",) * 3
    np.testing.assert_array_equal(table.performance, [[0.75, 0.5]] * 3)
    np.testing.assert_array_equal(table.cost, [[0.0075, 0.005]] * 3)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{", "row {} is no JSON, or cut short"),
        (json.dumps({"prompt": "two", "source": "arc"}), "row {} has no 'arms'"),
        (json.dumps(line("two", arms={"maker/small": {}})), "row {} is of maker/small, and the"),
        (json.dumps(line("two", arms={f"maker/{n}": {} for n in ("small", "large")})),
         "row {} must have a reward in .* and a cost of at least 0 in numbers"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("before", ["", "\n"])
def test_a_bad_row_is_named(row, message, before, tmp_path):
    with pytest.raises(TableError, match=message.format(2 + len(before))):
        read_paretobandit(folder(tmp_path, json.dumps(line("one")), before + row))


def test_a_row_of_the_second_file_is_named_as_it_stands_there(tmp_path):
    here = folder(tmp_path, *(json.dumps(line(f"{i}")) for i in range(5)))
    bad = {name: {"reward": 1.5, "cost": 1} for name in line("")["arms"]}
    rows = {
        "test_holdout.jsonl: row 2 must have a reward in": line("two", arms=bad),
        "test_holdout.jsonl: row 2 has the prompt of .*val.jsonl: row 4": line("3"),
    }
    for message, row in rows.items():
        lines = [json.dumps(line("the last")), json.dumps(row)]
        (here / FILES[1]).write_text("\ufeff" + "\r\n".join(lines))
        with pytest.raises(TableError, match=message):
            read_paretobandit(here)


def test_the_table_comes_with_the_package(tmp_path):
    """In an empty folder, with nothing prepared and no hub asked."""
    table, embeddings = load_dataset("paretobandit", tmp_path / "nothing")
    assert (table.num_prompts, table.num_servers, table.proxy_note) == (3609, 3, "")
    assert table.servers == ("gemini-2.5-pro", "llama-3.1-8b-instruct", "mistral-large-2512")
    assert embeddings.shape == (3609, 384)
    np.testing.assert_allclose(np.linalg.norm(embeddings, axis=1), 1, atol=1e-3)
    np.testing.assert_allclose(table.performance.mean(axis=0), [0.934, 0.791, 0.924], atol=1e-3)
    np.testing.assert_allclose(table.cost.mean(axis=0), [1.5e-2, 2.9e-5, 5.2e-4], rtol=0.02)


@pytest.mark.slow
def test_its_own_package_holds_the_same_and_is_prepared_without_an_encoder(tmp_path):
    if ENTRY.package_folder is None and not os.environ.get("CI"):
        pytest.skip("its package is not installed: pip install -e '.[paretobandit]'")
    shipped, vectors = load_dataset("paretobandit", tmp_path / "nothing")
    assert ENTRY.package_folder is not None, "an extra of the tests"
    own = ENTRY.read(ENTRY.package_folder, None)
    for field in ("name", "prompt_ids", "prompts", "origins", "servers"):
        assert getattr(own, field) == getattr(shipped, field), field
    np.testing.assert_array_equal(own.performance, shipped.performance)
    np.testing.assert_array_equal(own.cost, shipped.cost)

    def none(prompts):
        raise AssertionError("an encoder was asked for")

    assert prepare("paretobandit", tmp_path, embedder=none).built
    table, again = load_dataset("paretobandit", tmp_path)
    np.testing.assert_array_equal(again, vectors)
    assert table.prompts == shipped.prompts


def test_embeddings_that_come_with_cqbjax_are_of_their_own_prompts_alone(tmp_path):
    asked = []

    def embedder(prompts):
        asked.append(prompts)
        return np.ones((len(prompts), 4), np.float32) / 2

    source = folder(tmp_path, json.dumps(line("one")))
    prepare("paretobandit", tmp_path / "data", source=source, embedder=embedder)
    assert asked == [("one", "the last")]


def test_without_its_package_there_is_nothing_to_prepare(tmp_path, monkeypatch):
    monkeypatch.setattr(catalogue.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(TableError, match=r"pip install 'cqbjax\[paretobandit\]', or give source="):
        prepare("paretobandit", tmp_path)
