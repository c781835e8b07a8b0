"""Sweeps as one long table and figures over keys: arithmetic on fabricated points."""

import numpy as np
import polars as pl
import pytest
import scipy.stats
import xarray as xr
from fabricated import fabricate

from cqbjax import figures
from cqbjax.cli import aggregate
from cqbjax.figures import sweeps
from cqbjax.results import frame as frames
from cqbjax.results import store
from cqbjax.results.summaries import throughput
from cqbjax.results.tables import load_table


def points():
    """Four points of two keys."""
    made = []
    for alpha in (0.1, 0.3):
        for c1 in (0.2, 0.5):
            point = fabricate(("acqb", "random"), rates=(0.6, 0.7), num_seeds=5, alpha_scale=alpha)
            made.append(point.assign_attrs(c1=c1, path=f"{alpha},{c1}"))
    return made


def test_aggregate_rows_match_the_arrays():
    made = points()
    frame = frames.aggregate_points(made, ["gap", "throughput"], [30, 60], reference="acqb")
    # 4 points, 2 rates, 2 policies, 2 rounds, 2 metrics.
    assert frame.height == 4 * 2 * 2 * 2 * 2
    (row,) = frame.filter(
        (pl.col("alpha_scale") == 0.3) & (pl.col("c1") == 0.5) & (pl.col("arrival_rate") == 0.7)
        & (pl.col("policy") == "random") & (pl.col("round") == 60) & (pl.col("metric") == "gap")
    ).to_dicts()  # fmt: skip
    last = made[3].sel(arrival_rate=0.7, round=60)
    gap = (last.queue_length - last.optimal_queue_length).sel(policy="random").values
    half = scipy.stats.t.ppf(0.975, 4) * gap.std(ddof=1) / np.sqrt(5)
    assert (row["n"], row["mean"]) == (5, pytest.approx(gap.mean()))
    assert row["sd"] == pytest.approx(gap.std(ddof=1))
    assert row["high"] == pytest.approx(gap.mean() + half)
    difference = (
        last.queue_length.sel(policy="acqb") - last.queue_length.sel(policy="random")
    ).values
    half = scipy.stats.t.ppf(0.975, 4) * difference.std(ddof=1) / np.sqrt(5)
    assert row["minus"] == pytest.approx(difference.mean())
    assert row["minus_low"] == pytest.approx(difference.mean() - half)
    own = frame.filter(pl.col("policy") == "acqb")
    assert own["minus"].is_null().all() and own["minus_low"].is_null().all()


def test_differences_of_shares_have_students_interval():
    share = (points()[0]["departures"] / 100).assign_attrs(units="")
    made = points()[0].assign(satisfied=share)
    (row,) = frames.aggregate_points([made], ["satisfied"], reference="acqb").filter(
        policy="random", arrival_rate=0.7
    ).to_dicts()  # fmt: skip
    last = share.sel(arrival_rate=0.7).isel(round=-1)
    values = (last.sel(policy="acqb") - last.sel(policy="random")).values
    ends = scipy.stats.t.interval(0.95, 4, values.mean(), scipy.stats.sem(values))
    # In [0, 1], as the shares themselves, whose interval is Wilson's.
    assert values.mean() > 0
    assert (row["minus_low"], row["minus_high"]) == pytest.approx(ends)
    own = last.sel(policy="random").values
    assert row["low"] != pytest.approx(own.mean() + ends[0] - values.mean())


def test_files_hold_the_same_table(tmp_path):
    frame = frames.aggregate_points(points())
    parquet, csv = frames.save_aggregate(frame, tmp_path / "table")
    assert pl.read_parquet(parquet).equals(frame)
    assert pl.read_csv(csv).shape == frame.shape
    assert not list(tmp_path.glob(".*"))


def test_command_tabulates_all_recorded_arrays_by_default_and_draws_the_gap(monkeypatch, tmp_path):
    made = [one.assign(answered=one["departures"] / one["round"]) for one in points()]
    drawn, draw = [], figures.draw_over_keys
    monkeypatch.setattr(
        figures, "draw_over_keys", lambda *words: drawn.append(words[1]) or draw(*words)
    )
    monkeypatch.setattr(store, "load_points", lambda folder: made)
    words = [str(tmp_path), "--out", str(tmp_path / "table")]
    aggregate.aggregate(aggregate.ARGUMENTS.parse_args(words))
    table = pl.read_csv(tmp_path / "table.csv")
    assert {*table["metric"]} == {"gap", "throughput", "answered"} and drawn == ["gap"]


@pytest.mark.parametrize(
    "keys, growth",
    [
        ({"metrics": ["speed"]}, "metric speed is unknown; choose from gap, queue_length"),
        ({"reference": "nobody"}, "policy nobody is in no point; choose from acqb, random"),
        ({"rounds": [0]}, "round is 0: the first recorded round"),
    ],
)
def test_invalid_aggregation_requests_are_rejected(keys, growth):
    with pytest.raises(ValueError, match=growth):
        frames.aggregate_points(points(), **keys)


def test_two_keys_are_drawn_as_heat_maps_per_policy():
    figure = sweeps.draw_over_keys(points(), over=["alpha_scale", "c1"])
    maps = [axis.images[0].get_array() for axis in figure.axes if axis.images]
    assert [axis.get_title() for axis in figure.axes if axis.images] == [
        "ACQB",
        "random query and LLM",
    ]
    wanted = np.mean(
        [
            (one.queue_length - one.optimal_queue_length).isel(round=-1).sel(policy="random").mean()
            for one in points()[1:2]
        ]
    )
    assert maps[1].shape == (2, 2) and maps[1][1, 0] == pytest.approx(wanted)
    assert "mean over λ" in figure.get_suptitle()


@pytest.mark.parametrize(("other_gap", "ends"), [(4, "neither"), (500, "max")])
def test_heat_map_colours_are_scaled_per_policy(other_gap, ends):
    """Colours of the good one's values, 1 to 4, are apart though the bad one has hundreds."""
    made = []
    for number, point in enumerate(points(), 1):
        gaps = xr.DataArray([number, other_gap], dims="policy")
        made.append(point.assign(queue_length=point.optimal_queue_length + gaps))
    figure = sweeps.draw_over_keys(made, over=["alpha_scale", "c1"])
    good, bad = (axis.images[0] for axis in figure.axes if axis.images)
    assert good.get_array().max() == 4 and bad.get_array().max() == other_gap
    assert good.get_clim() == bad.get_clim() == (0, min(other_gap, 8))
    assert bad.colorbar.extend == ends


def test_one_key_is_drawn_as_lines_with_intervals():
    figure = sweeps.draw_over_keys(points(), "throughput", 30, ["arrival_rate"])
    (axis,) = figure.axes
    # Seeds are the replications: the values of other keys are averaged first.
    each = [throughput(one).sel(policy="acqb", round=30, arrival_rate=0.7) for one in points()]
    by_seed = np.mean(each, axis=0)
    ends = scipy.stats.t.interval(0.95, 4, by_seed.mean(), scipy.stats.sem(by_seed))
    band = axis.collections[0].get_paths()[0].vertices
    height = band[band[:, 0] == 0.7][:, 1]
    assert (height.min(), height.max()) == pytest.approx(ends)
    assert [line.get_label() for line in axis.lines] == ["ACQB", "random query and LLM"]
    assert list(axis.lines[0].get_xdata()) == [0.6, 0.7] and len(axis.collections) == 2
    assert "round 30" in figure.get_suptitle()
    with pytest.raises(ValueError, match="key kappa was not swept; choose from"):
        sweeps.draw_over_keys(points(), over=["kappa"])


def test_stability_limit_is_the_last_rate_before_the_queue_grows():
    """Queues are stable up to a known rate and grow at a known rate above it; one always grows.

    The mean counts, however different the seeds are. Rates above the first unstable one do not
    count, even if the queue is stable there.
    """
    by_seed = 0.5 + np.array([-3.0, -1, 1, 3])

    def point(rate):
        made = fabricate(("acqb", "random"), rates=(rate,), num_seeds=4, horizon=60)
        made["queue_length"] = made["queue_length"].astype(float)
        rounds = made["round"].values
        growing = {"acqb": 0.6 <= rate < 0.8, "random": True}
        for label, grows in growing.items():
            grown = by_seed[:, None] * rounds * grows
            made["queue_length"].loc[{"policy": label}] = 3 + grown[None]
        return made

    made = [point(rate) for rate in (0.5, 0.7, 0.8, 0.6, 0.4)]
    by_policy = {row["policy"]: row for row in load_table(made).iter_rows(named=True)}
    assert (by_policy["acqb"]["stable_up_to"], by_policy["acqb"]["next"]) == (0.5, 0.6)
    assert by_policy["acqb"]["growth"] == pytest.approx(0.5) and by_policy["acqb"]["rates"] == 5
    ends = scipy.stats.ttest_1samp(by_seed, 0.0).confidence_interval(0.95)
    growth = by_policy["acqb"]["growth_low"], by_policy["acqb"]["growth_high"]
    assert growth == pytest.approx((ends.low, ends.high)) and ends.low < 0
    assert (by_policy["random"]["stable_up_to"], by_policy["random"]["next"]) == (None, 0.4)
    quiet = load_table(made[:1])
    assert dict(zip(quiet["policy"], quiet["stable_up_to"], strict=True)) == {
        "acqb": 0.5,
        "random": None,
    }
