"""The estimator's error as a kind of study: stored, not run again, the numbers of its parts."""

import numpy as np
import polars as pl
import pytest
from composing import called

from cqbjax import sources
from cqbjax.studies import estimator_error
from cqbjax.studies.estimator_error import Case

SOURCE = sources.Synthetic(num_servers=3, dim=2)
CASES = {"one": Case(SOURCE, 1, 0.5, 60, 2, every=5), "pair": Case(SOURCE, 2, 0.6, 60, every=5)}


@pytest.mark.slow
def test_cases_are_stored_and_told_by_their_worst_and_mean(tmp_path, monkeypatch):
    monkeypatch.setattr(estimator_error, "cases", lambda folder: CASES)
    words = ["estimator_error", f"results_dir={tmp_path}"]
    done = called(*words)
    assert done.returncode == 0, done.stderr
    table = pl.read_csv(tmp_path / "tables" / "estimator_error.csv")
    assert table["case"].to_list() == ["one", "pair"] and table["seeds"].to_list() == [2, 1]
    for name, case in CASES.items():
        runs = [estimator_error.distances_of(case, seed) for seed in range(case.seeds)]
        shares = np.concatenate([estimator_error.percent(run, case.scale) for run in runs])
        row = table.row(by_predicate=pl.col("case") == name, named=True)
        told = row["max_percent"], row["mean_percent"]
        assert told == pytest.approx((shares.max(), shares.mean()), rel=1e-6)
        assert 0 < row["max_percent"] < 100 and row["rounds"] == 60
    monkeypatch.setattr(estimator_error, "distances_of", None)
    again = called(*words)
    assert "2 of 2 policies at 2 points are stored: not run again" in again.stdout
    assert pl.read_csv(tmp_path / "tables" / "estimator_error.csv").equals(table)
