"""Extracts: the numbers of an extract are those of the study's arrays."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import scipy.stats
from fabricated import fabricate

from cqbjax.results.files import StoredPoint
from cqbjax.results.frame import add_interval
from reproduction import extracts
from reproduction.extracts import REFERENCES, ExtractError

POLICIES = ("optimal", "acqb", "acqb_cl", "cqb_eps", "random")
CONFIG = {"table_rounds": [200, 400], "queue": "regret", "figure_policies": ["acqb", "random"]}
YAML = "results_dir: /somebody/results\ndata_dir: /somebody/data\nnum_seeds: 12\n"


def store(policies=POLICIES, num_seeds=12, **attributes):
    point = fabricate(policies, (0.6, 0.7), num_seeds, horizon=400, **attributes)
    manifest = {"point": f"K={point.attrs['K']}", "varied": {"K": point.attrs["K"]}}
    return StoredPoint(point, manifest, YAML)


def make_extract(**changes):
    return extracts.extract([store(), store(K=2)], CONFIG | changes)


def test_extract_numbers_match_the_arrays():
    point, one = store().point, make_extract()
    for t in (200, 400):
        at = point.sel(round=t, arrival_rate=0.7)
        gap = (at.queue_length - at.optimal_queue_length).sel(policy="cqb_eps").values
        here = {"point": 0, "arrival_rate": 0.7, "round": t, "policy": "cqb_eps"}
        (row,) = one.numbers.filter(metric="gap", **here).to_dicts()
        assert (row["n"], row["mean"]) == (12, pytest.approx(gap.mean()))
        assert row["sd"] == pytest.approx(gap.std(ddof=1))
        (rate,) = one.numbers.filter(metric="throughput", **here).to_dicts()
        assert rate["mean"] == pytest.approx(float(at.departures.sel(policy="cqb_eps").mean()) / t)
        for label in REFERENCES:
            other = (at.queue_length - at.optimal_queue_length).sel(policy=label).values
            (difference,) = one.paired.filter(metric="gap", reference=label, **here).to_dicts()
            assert difference["mean"] == pytest.approx((other - gap).mean())
            assert difference["sd"] == pytest.approx((other - gap).std(ddof=1))


def test_extract_rounds_are_reached_by_every_point():
    points = [store(), StoredPoint(fabricate(POLICIES, num_seeds=2, horizon=300, K=2), {}, "")]
    notes = extracts.extract(points, CONFIG).notes
    assert (notes["horizon"], notes["rounds"]) == (300, [200, 300])


def test_gap_growth_is_paired_and_measured_since_half_the_horizon():
    point = store().point.sel(arrival_rate=0.6, policy="random")
    gap = (point.queue_length - point.optimal_queue_length).astype(float)
    grown = (gap.sel(round=400) - gap.sel(round=200)).values
    (row,) = (
        make_extract()
        .numbers.filter(metric="gap_growth", point=0, arrival_rate=0.6, round=400, policy="random")
        .to_dicts()
    )
    assert (row["mean"], row["sd"]) == pytest.approx((grown.mean(), grown.std(ddof=1)))


@pytest.mark.slow
def test_extract_curves_are_thinned_and_end_at_the_horizon():
    curves = make_extract().curves
    assert set(curves["metric"].unique()) == {"gap", "regret"}
    assert "optimal" not in curves["policy"].unique()
    one = curves.filter(point=1, arrival_rate=0.7, policy="acqb", metric="regret").sort("round")
    assert one.height == extracts.MOST_ROUNDS and one["round"][-1] == 400
    exact = store(K=2).point.regret.sel(policy="acqb", arrival_rate=0.7).mean("seed")
    thinned = exact.sel(round=one["round"].to_numpy()).values
    np.testing.assert_allclose(one["mean"].to_numpy(), thinned, rtol=5 * 10.0**-extracts.DIGITS)
    length = make_extract(queue="length").curves.filter(metric="queue_length")
    assert "optimal" in length["policy"].unique()


def test_extract_intervals_are_student_t_and_missing_for_one_seed():
    rows = add_interval(make_extract().numbers.filter(metric="gap"))
    row = rows.row(3, named=True)
    low, high = scipy.stats.t.interval(0.95, 11, row["mean"], row["sd"] / np.sqrt(12))
    assert (row["low"], row["high"]) == pytest.approx((low, high))
    alone = extracts.extract([store(num_seeds=1)], CONFIG)
    assert add_interval(alone.numbers)["low"].is_null().all()


def test_extracts_round_trip(tmp_path):
    one = make_extract()
    extracts.write(one, tmp_path / "study")
    (back,) = extracts.read_all(tmp_path).values()
    assert back.notes == one.notes
    for name in extracts.FRAMES:
        assert getattr(back, name).equals(getattr(one, name))
    assert extracts.read_all(tmp_path / "nowhere") == {}


def test_extracts_store_no_local_paths(tmp_path):
    extracts.write(make_extract(), tmp_path)
    text = (tmp_path / extracts.NOTES).read_text()
    assert "somebody" not in text and '"num_seeds": 12' in text


def test_a_study_without_a_policy_to_compare_with_has_no_pairs(tmp_path):
    one = extracts.extract([store(("optimal", "random"))], CONFIG)
    assert one.paired.is_empty() and {"reference", "mean"} <= set(one.paired.columns)
    extracts.write(one, tmp_path)
    assert extracts.read(tmp_path).paired.columns == one.paired.columns


@pytest.mark.slow
@pytest.mark.parametrize("name", [extracts.NOTES, "curves.parquet"])
def test_damaged_extracts_are_rejected_with_their_folder(name, tmp_path):
    extracts.write(make_extract(), tmp_path)
    (tmp_path / name).write_bytes(b"{")
    with pytest.raises(ExtractError, match=f"{Path(tmp_path).name} is no extract of a study"):
        extracts.read(tmp_path)


def test_reference_policies_are_not_compared_with_themselves():
    paired = make_extract().paired
    assert paired.filter(pl.col("policy") == pl.col("reference")).is_empty()
    assert set(paired["reference"].unique()) == set(REFERENCES)
