"""Our numbers and the paper's: every number has a row, and verdicts err as often as stated."""

import numpy as np
import polars as pl
import pytest
from fabricated import fabricate
from tiers import cases

from cqbjax.results.files import StoredPoint
from reproduction import extracts
from reproduction.paper import catalogue, comparison, printed

SYNTHETIC = {"parameters": "disjoint"}
LABELS = ("optimal", "acqb", "acqb_fifo", "acqb_rr", "acqb_random", "cqb_eps", "q_ths", "random")


def study(name="synthetic", rates=(0.7,), seeds=12, horizon=1000, labels=LABELS, **attributes):
    attributes = {"experiment": name, **SYNTHETIC, **attributes}
    point = fabricate(labels, rates, seeds, horizon, every=horizon // 4, **attributes)
    config = {"table_rounds": [horizon // 2, horizon]}
    return extracts.extract([StoredPoint(point, {"point": "K=1"}, "")], config)


AT = {"arrival_rate": 0.7, "stand_in": "", "provenance": "paper"}
SLICE = {
    "source": "RouterBench slice",
    "stand_in": "a slice",
    "provenance": "stand-in",
    "num_servers": 11,
    "slackness": "",
}


def compare_all(**studies):
    return comparison.compare(studies, catalogue.load_studies())


def test_every_printed_number_has_a_row_and_every_row_a_verdict_or_a_reason():
    frame = compare_all(synthetic=study())
    keys = ["dataset", "K", "arrival_rate", "round", "policy", "statistic"]
    theirs = printed.read()
    assert frame.height == theirs.height == 980
    assert frame.sort(keys)["paper"].to_list() == theirs.sort(keys)["value"].to_list()
    assert frame.filter(pl.col("inside").is_null() & pl.col("note").is_null()).is_empty()
    assert frame.filter(pl.col("ours").is_null())["note"].is_not_null().all()
    without = frame.filter(dataset="Synthetic", policy="q_ucb")["note"].unique().to_list()
    assert without == ["synthetic has no policy q_ucb at K = 1"]
    assert frame.filter(dataset="Sprout")["note"].unique().to_list() == ["not run: sprout"]


def test_comparison_rows_hold_difference_and_the_papers_standard_error():
    made = study()
    frame = compare_all(synthetic=made)
    here = {"round": 1000, "policy": "acqb"}
    (row,) = frame.filter(dataset="Synthetic", statistic="throughput", **here).to_dicts()
    (ours,) = made.numbers.filter(metric="throughput", **here).to_dicts()
    assert row["difference"] == pytest.approx(ours["mean"] - 0.680)
    assert row["standard_error"] == pytest.approx(ours["sd"] / np.sqrt(10))
    assert (row["seeds"], row["runs"], row["stand_in"]) == (12, 10, "")
    timed = frame.filter(statistic="seconds_per_round", **here)
    assert timed["inside"][0] is None and timed["note"][0].startswith("not judged: the paper times")


@pytest.mark.slow
def test_each_study_of_a_printed_number_has_a_row():
    frame = compare_all(synthetic=study(), synthetic_unscaled=study("synthetic_unscaled"))
    rows = frame.filter(dataset="Synthetic", statistic="throughput", policy="acqb", round=500)
    assert rows["study"].to_list() == ["synthetic", "synthetic_unscaled"]
    counted = comparison.count(frame).filter(dataset="Synthetic")
    # All but Q-UCB, of which these studies have none.
    assert counted["judged"].to_list() == [14, 14] and counted["ours"].to_list() == [28, 28]


@pytest.mark.slow
def test_proxy_rows_are_marked_and_matched_by_load_level():
    labels = ("optimal", "acqb", "random")
    made = study("routerbench", (0.6, 0.65, 0.7), horizon=5000, labels=labels, **SLICE)
    rows = compare_all(routerbench=made).filter(
        pl.col("ours").is_not_null(), dataset="RouterBench", policy="acqb", statistic="gap_mean"
    )
    assert rows["stand_in"].unique().to_list() == ["a slice"]
    levels = dict(rows.sort("arrival_rate").select("arrival_rate", "our_rate").iter_rows())
    assert levels == {0.5: 0.6, 0.6: 0.65, 0.7: 0.7}
    at_other_rates = rows.filter(pl.col("arrival_rate") < 0.65)
    assert at_other_rates["inside"].is_null().all()
    assert set(at_other_rates["note"]) == {
        "not judged: 0.6 queries a round in place of 0.5",
        "not judged: 0.65 queries a round in place of 0.6",
    }
    assert rows.filter(arrival_rate=0.7)["inside"].is_not_null().all()


@pytest.mark.slow
def test_synthetic_content_is_not_judged():
    # In the words of `datasets.catalogue`, which tests/datasets holds it to.
    made_up = SLICE | {"stand_in": "any description", "provenance": "generated"}
    made = study("sprout", (0.7,), horizon=5000, labels=("optimal", "acqb"), **made_up)
    rows = compare_all(sprout=made).filter(pl.col("ours").is_not_null(), statistic="gap_mean")
    assert rows.height and rows["inside"].is_null().all()
    assert rows["note"].unique().to_list() == ["not judged: made-up data"]
    assert rows["standard_error"].is_not_null().all()


def test_shorter_runs_and_other_settings_are_not_compared():
    short = compare_all(synthetic=study(horizon=400)).filter(dataset="Synthetic")
    assert set(short["note"]) == {
        "synthetic has not run to round 500",
        "synthetic has not run to round 1,000",
    }
    other = compare_all(synthetic=study(num_servers=3)).filter(dataset="Synthetic")
    assert set(other["note"]) == {"synthetic has not run at K = 1"}


@pytest.mark.parametrize("n", cases([10, 100], [10]))
@pytest.mark.parametrize("statistic", ["throughput", "gap_mean", "gap_sd"])
def test_false_alarm_rate_of_the_comparison_is_5_percent(statistic, n, monkeypatch):
    monkeypatch.setitem(comparison.HALF_UNIT, statistic, 0.0)
    draws, m, tries = np.random.default_rng(1), 10, 2000
    theirs, ours = draws.normal(3, 2, (tries, m)), draws.normal(3, 2, (tries, n))
    of_paper = theirs.std(1, ddof=1) if statistic == "gap_sd" else theirs.mean(1)
    outside = 0
    for value, own in zip(of_paper, ours, strict=True):
        row = {"statistic": statistic, "runs": m, "paper": value, **AT}
        number = comparison.OurNumber(n, own.mean(), own.std(ddof=1), 0.7)
        outside += not comparison.judge(row, number)["inside"]
    # Five standard errors of a binomial share about one in twenty.
    assert abs(outside / tries - 0.05) < 5 * np.sqrt(0.05 * 0.95 / tries)


def test_planted_differences_are_detected_beyond_rounding():
    row = {"statistic": "throughput", "runs": 10, "paper": 0.5, **AT}
    near = comparison.judge(row, comparison.OurNumber(100, 0.5004, 0.0, 0.7))
    far = comparison.judge(row, comparison.OurNumber(100, 0.5006, 0.0, 0.7))
    assert near["inside"] and not far["inside"]
    one = comparison.judge(row, comparison.OurNumber(1, 0.5, None, 0.7))
    assert one["note"] == "not judged: a single seed" and "inside" not in one
