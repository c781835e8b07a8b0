"""The report of stored studies: which folder it needs, and why it writes no page."""

import pytest
from composing import refusal_of, run_command


@pytest.fixture
def results_folder(tmp_path, monkeypatch):
    """A folder with one stored result, which is only looked for and not read."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "results" / "data" / "mine" / "a.nc"
    file.parent.mkdir(parents=True)
    file.touch()
    return file.parent


@pytest.mark.parametrize("root", [".", "results/data", "results/data/mine"])
def test_report_on_a_wrong_folder_names_the_needed_one(root, results_folder):
    message = refusal_of([root], "report")
    assert message.startswith(f"error: {root} has no folder data/ with results: give ")
    words = message.partition(": give ")[2].split()
    assert words[0].endswith("results") and words[1:] == (["mine"] if "mine" in root else [])


def test_report_on_an_unknown_experiment_lists_the_stored_ones(results_folder):
    assert refusal_of(["results", "mime"], "report").endswith("results/data: did you mean mine?")
    assert refusal_of(["results", "x"], "report").endswith("results/data; choose from mine")


def test_report_states_the_reason_for_a_missing_page(results_folder):
    done = run_command("report")
    assert done.returncode == 3 and done.stderr.startswith("mine left out: ")
    assert done.stdout == (
        "no page: it compares with the paper, and is made by scripts/report.py in a checkout\n"
    )
