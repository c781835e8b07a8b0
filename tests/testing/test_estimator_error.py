"""The table of the estimator's distances: its numbers are those of the cases' runs."""

import numpy as np
import polars as pl
import pytest

from cqbjax import sources
from cqbjax.core import backend
from tests.reference import estimator_error
from tests.reference.estimator_error import Case

pytestmark = pytest.mark.slow

SOURCE = sources.Synthetic(num_servers=3, dim=2)
CASES = {"one": Case(SOURCE, 1, 0.5, 60, 2, every=5), "pair": Case(SOURCE, 2, 0.6, 60, every=5)}


def test_estimator_error_table_has_worst_and_mean_distances(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(backend, "configure", lambda *_: None)  # too late in this process
    monkeypatch.setattr(estimator_error, "cases", lambda folder: CASES)
    estimator_error.write(estimator_error.ARGUMENTS.parse_args(["--results", str(tmp_path)]))
    table = pl.read_csv(tmp_path / "tables" / "estimator_error.csv")
    assert table["case"].to_list() == ["one", "pair"] and table["seeds"].to_list() == [2, 1]
    for name, case in CASES.items():
        runs = [estimator_error.distances_of(case, seed) for seed in range(case.seeds)]
        shares = np.concatenate([estimator_error.percent(run, case.scale) for run in runs])
        row = table.row(by_predicate=pl.col("case") == name, named=True)
        found = row["max_percent"], row["mean_percent"]
        assert found == pytest.approx((shares.max(), shares.mean()), rel=1e-6)
        assert 0 < row["max_percent"] < 100 and row["rounds"] == 60
    assert "estimator_error.md" in capsys.readouterr().out
