"""The table of known and simulated mean queues: how it is made, and the one that is committed."""

import subprocess
import sys

import polars as pl
import pytest
from composing import REPOSITORY

from cqbjax.core import backend
from tests.reference import known_answers, known_queues

WIDEST = 2.6  # percent, of half an interval


@pytest.mark.slow
def test_known_answers_command_writes_table_and_figure(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(backend, "configure", lambda *_: None)  # too late in this process
    monkeypatch.setattr(known_queues, "KNOWN", (known_queues.KNOWN[0], known_queues.KNOWN[8]))
    words = ["--loads", "0.6", "0.4", "--seeds", "12", "--relaxations", "20"]
    words += ["--results", str(tmp_path)]
    known_answers.compare(known_answers.ARGUMENTS.parse_args(words))
    table = pl.read_csv(tmp_path / "tables" / "known_answers.csv")
    assert table["load"].to_list() == [0.4, 0.6] * 2
    assert table["known"][0] == pytest.approx(0.3 * 0.7 / 0.45)
    for row in table.iter_rows(named=True):
        assert row["simulated_low"] < row["simulated"] < row["simulated_high"]
        percent = 100 * (row["simulated"] / row["known"] - 1)
        assert row["error"] == pytest.approx(percent, abs=1e-4)
        assert abs(row["error"]) < 25
    assert "λ(1-λ) / (m-λ)" in (tmp_path / "tables" / "known_answers.md").read_text()
    assert (tmp_path / "figures" / "known_answers.png").stat().st_size > 5000
    assert "one success rate" in capsys.readouterr().out


@pytest.mark.slow
def test_committed_table_lists_all_scenarios_with_their_known_means():
    table = pl.read_csv(REPOSITORY / "results" / "tables" / "known_answers.csv")
    known = {one.name: one for one in known_queues.KNOWN}
    assert sorted(zip(table["scenario"], table["load"], strict=True)) == sorted(
        (name, load) for name in known for load in (0.6, 0.8, 0.95)
    )
    for row in table.iter_rows(named=True):
        one = known[row["scenario"]]
        assert row["closed_form"] == one.formula
        assert row["arrival_rate"] == pytest.approx(one.rate(row["load"]))
        assert row["known"] == pytest.approx(one.expected(one.rate(row["load"])))
        assert row["error_high"] - row["error_low"] < 2 * WIDEST
    outside = (table["error_low"] > 0) | (table["error_high"] < 0)
    # One in twenty is expected, and scenarios of a load share their draws.
    assert outside.sum() <= 0.2 * len(table)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--loads", "1.2"], "error: --loads 1.2 must lie in (0, 0.99]"),
        (["--seeds", "1"], "error: --seeds 1 must be at least 2"),
        (["--relaxations", "0"], "error: --relaxations 0 must be at least 1"),
    ],
)
def test_invalid_known_answers_arguments_are_rejected(words, message, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["known_answers.py", *words])
    with pytest.raises(SystemExit) as stopped:
        known_answers.main()
    assert stopped.value.code == 2 and capsys.readouterr().err.startswith(message)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["known_answers", "estimator_error"])
def test_table_modules_run_from_a_checkout(name):
    command = [sys.executable, "-m", f"tests.reference.{name}", "--help"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0 and "--results" in done.stdout, done.stderr
