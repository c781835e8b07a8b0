"""The paper's printed numbers in our tables: beside the same setting, and nowhere else."""

from pathlib import Path

import polars as pl
import pytest
from fabricated import SLICE, fabricate, row_of

from cqbjax.experiments import configs, display
from cqbjax.experiments.study_types import OutputTable, StudyOutput
from cqbjax.experiments.sweeps import Sweep
from cqbjax.results import policy_styles, tables
from reproduction import run
from reproduction.paper import printed


class UserStudyType(Sweep):
    """A kind of study of a user's own."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "name", "swept", "extended"),
    [
        (Sweep, "synthetic", ("K", (1, 2)), True),
        (Sweep, "synthetic", ("c1", (0.1, 0.2)), False),
        (Sweep, "mine", ("K", (1, 2)), False),
        (UserStudyType, "synthetic", ("K", (1, 2)), False),
    ],
)
def test_only_report_studies_show_the_papers_numbers(kind, name, swept, extended, monkeypatch):
    """Though its setting is the paper's: neither a number nor a wall clock of it."""
    key, values = swept
    points = [
        fabricate(("acqb", "random"), horizon=1000, every=100, num_seeds=3, **{key: value})
        for value in values
    ]
    config = configs.to_config({"name": name, "table": "throughput", "table_rounds": [500, 1000]})
    table, more = display.build_table(points, config), OutputTable(pl.DataFrame({"x": [1]}), "more")
    shown = StudyOutput({"": OutputTable(table, "main"), "more": more}, {"": "a figure"})
    monkeypatch.setattr(Sweep, "show", lambda *_: shown)
    made = run.show(kind(), points, config)
    paper = {"paper_throughput", "paper_seconds_per_round"}
    assert set(made.tables[""].frame.columns) - set(table.columns) == (paper if extended else set())
    assert made.tables["more"] is more and made.tables[""].caption == "main"
    assert made.figures == shown.figures


def test_papers_numbers_are_added_to_matching_rows() -> None:
    policies = ("acqb", "acqb_random", "cqb_eps", "q_ths", "random")
    points = [
        fabricate(policies, horizon=1000, every=100, num_seeds=3, num_servers=n) for n in (5, 3)
    ]
    table = printed.add_columns(tables.throughput_table(points), printed.match_datasets(points))
    known = {"acqb": 0.680, "acqb_random": 0.670, "cqb_eps": 0.667, "q_ths": 0.545, "random": 0.540}
    for policy, value in known.items():
        chosen = {"round": 1000, "policy": policy}
        assert row_of(table, num_servers=5, **chosen)["paper_throughput"] == value
        assert row_of(table, num_servers=3, **chosen)["paper_throughput"] is None
    row = row_of(table, num_servers=5, round=500, policy="acqb")
    assert row["paper_seconds_per_round"] == 0.013
    columns = table.columns
    assert columns.index("paper_throughput") == columns.index("throughput_high") + 1


def test_tables_of_other_settings_get_no_empty_column() -> None:
    ours = tables.throughput_table([fabricate(("acqb",), num_servers=3, horizon=1000)], (1000,))
    synthetic = {"synthetic": "Synthetic"}
    assert printed.add_columns(ours, synthetic).columns == ours.columns
    theirs = tables.throughput_table([fabricate(("acqb",), num_servers=5, horizon=1000)], (1000,))
    assert printed.add_columns(theirs, synthetic)["paper_throughput"].to_list() == [0.68]


@pytest.mark.slow
def test_proxies_get_the_papers_numbers_only_on_request() -> None:
    policies = ("acqb_cl", "rand_rout", "routerdc", "knn_priority")
    ds = fabricate(policies, rates=(0.1 + 0.5,), horizon=2500, every=500, num_seeds=2, **SLICE)
    table = tables.gap_table([ds])
    assert printed.match_datasets([ds]) == {}
    assert printed.match_datasets([ds.assign_attrs(source="RouterBench")]) == {}
    assert printed.add_columns(table, {}).columns == table.columns
    extended = printed.add_columns(table, datasets={"RouterBench slice": "RouterBench"})
    assert extended["paper_gap_mean"].to_list() == [6.9, 155.7, 287.5, None]
    assert extended["paper_gap_sd"].to_list() == [6.7, 26.7, 41.3, None]
    real = ds.assign_attrs(source="RouterBench", stand_in="", provenance="paper")
    assert printed.match_datasets([real]) == {"RouterBench": "RouterBench"}


def test_shared_parameters_do_not_match_the_paper() -> None:
    points = [fabricate(("acqb",), horizon=1000, parameters=p) for p in ("shared", "disjoint")]
    table = tables.throughput_table(points, rounds=(1000,))
    table = printed.add_columns(table, printed.match_datasets(points))
    assert row_of(table, parameters="shared")["paper_throughput"] is None
    assert row_of(table, parameters="disjoint")["paper_throughput"] == 0.68


def test_invalid_file_of_printed_numbers_is_reported(tmp_path: Path) -> None:
    table = tables.gap_table([fabricate()])
    with pytest.raises(ValueError, match="is missing"):
        printed.add_columns(table, {}, tmp_path / "absent.csv")
    (tmp_path / "bad.csv").write_text("K,dataset\n1,Sprout\n")
    with pytest.raises(ValueError, match="lacks column arrival_rate"):
        printed.add_columns(table, {}, tmp_path / "bad.csv")


def test_every_row_of_the_papers_tables_has_one_of_our_labels() -> None:
    rows = printed.read().filter(pl.col("dataset") != "WildChat-1M")
    assert set(rows["policy"]) <= set(policy_styles.STYLE)
