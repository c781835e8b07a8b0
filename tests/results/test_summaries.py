"""Summaries against scipy.stats and arithmetic done by hand."""

from typing import Any

import numpy as np
import polars as pl
import pytest
import scipy.stats
import xarray as xr
from fabricated import fabricate
from tiers import cases

from cqbjax.results import frame, metrics, summaries

DIMS = ("policy", "arrival_rate", "seed", "round")


def test_mean_ci_matches_scipys_t_interval() -> None:
    values = np.random.default_rng(0).normal(3.0, 2.0, (4, 9))
    ours = summaries.mean_ci(xr.DataArray(values, dims=("policy", "seed")), level=0.9)
    for row in range(4):
        low, high = scipy.stats.ttest_1samp(values[row], 0.0).confidence_interval(0.9)
        np.testing.assert_allclose(ours["low"][row], low, rtol=1e-12)
        np.testing.assert_allclose(ours["high"][row], high, rtol=1e-12)
    np.testing.assert_allclose(ours["mean"], values.mean(1), rtol=1e-12)


def test_shares_have_wilson_intervals() -> None:
    """Of seeds that are alike scipy's of n draws; of yes-or-no seeds that of n - 1, with t."""
    made = summaries.share_interval(30, np.array([0.0, 0.4, 1.0]), np.zeros(3))
    theirs = [scipy.stats.binomtest(k, 30).proportion_ci(method="wilson")[:] for k in (0, 12, 30)]
    np.testing.assert_allclose(np.transpose(made), theirs, atol=1e-12)
    values = np.r_[np.ones(7), np.zeros(23)]
    t, p = scipy.stats.t.ppf(0.975, 29), 7 / 30
    roots = np.roots([1 + t**2 / 29, -(2 * p + t**2 / 29), p**2])  # |p - x| = t sqrt(x (1-x) / 29)
    own = summaries.mean_ci(xr.DataArray(values, dims="seed"), share=True)
    np.testing.assert_allclose(sorted(roots), [own["low"], own["high"]])


@pytest.mark.parametrize("n", cases([2, 3, 30], [3]))
def test_share_interval_contains_the_mean_and_has_positive_width(n: int) -> None:
    for values in np.random.default_rng(n).beta(0.2, 0.4, size=(50, n)).round(1):
        own = summaries.mean_ci(xr.DataArray(values, dims="seed"), share=True)
        assert 0 <= own["low"] <= own["mean"] <= own["high"] <= 1 and own["low"] < own["high"]
    # Where seeds differ by little it is Student's.
    close = xr.DataArray(0.5 + 1e-4 * np.arange(n), dims="seed")
    one, other = summaries.mean_ci(close, share=True), summaries.mean_ci(close)
    np.testing.assert_allclose([one[end] for end in one], [other[end] for end in one], atol=1e-5)
    assert summaries.mean_ci(close[:1], share=True)["low"].isnull()


def test_mean_ci_ignores_missing_runs() -> None:
    values = np.array([[1.0, 2.0, 4.0, np.nan, np.nan], [np.nan] * 5])
    ours = summaries.mean_ci(xr.DataArray(values, dims=("policy", "seed")))
    low, high = scipy.stats.ttest_1samp([1.0, 2.0, 4.0], 0.0).confidence_interval(0.95)
    np.testing.assert_allclose([ours["low"][0], ours["high"][0]], [low, high], rtol=1e-12)
    assert np.isnan(ours["mean"][1]) and np.isnan(ours["low"][1])


def test_one_seed_has_a_mean_and_no_interval() -> None:
    one = xr.DataArray([[5.0]], dims=("policy", "seed"))
    interval = summaries.mean_ci(one)
    assert float(interval["mean"][0]) == 5.0
    assert np.isnan(interval["low"][0]) and np.isnan(interval["high"][0])


def test_rows_of_any_number_of_seeds_are_summarised_in_place() -> None:
    values = pl.Series([[2.0, 4.0, 9.0], [5.0], [1.0, 3.0]])
    ours = frame.summarise(pl.DataFrame({"policy": ["a", "b", "c"], "values": values}))
    assert ours["n"].to_list() == [3, 1, 2] and ours["mean"].to_list() == [5.0, 5.0, 2.0]
    assert ours["sd"].to_list() == [pytest.approx(np.sqrt(13)), None, pytest.approx(np.sqrt(2))]
    ends = scipy.stats.ttest_1samp([2.0, 4.0, 9.0], 0.0).confidence_interval(0.95)
    assert ours.select("low", "high").row(0) == pytest.approx((ends.low, ends.high))
    assert ours.select("low", "high").row(1) == (None, None)
    assert frame.summarise(pl.DataFrame(schema={"values": pl.List(pl.Float64)})).is_empty()


def test_integers_do_not_overflow_in_a_mean() -> None:
    large = xr.DataArray(np.full((6,), 2**31 - 1, np.int32), dims="seed")
    assert float(summaries.mean_ci(large)["mean"]) == 2**31 - 1


def test_queue_regret_and_throughput_by_hand() -> None:
    ds = fabricate(rates=(0.5, 0.7), num_seeds=3, horizon=40, every=4)
    regret, rate = summaries.queue_regret(ds), summaries.throughput(ds)
    assert regret.dims == rate.dims == summaries.RUN_DIMS
    expected = int(ds["queue_length"][2, 1, 0, 9]) - int(ds["optimal_queue_length"][1, 0, 9])
    assert int(regret[2, 1, 0, 9]) == expected
    assert float(rate[2, 1, 0, 9]) == int(ds["departures"][2, 1, 0, 9]) / 40


def make_stranding(**attributes: Any) -> xr.Dataset:
    """A query arrives in each of ten rounds: the first is never served, others leave after one."""
    rounds = np.arange(1, 11)
    each = {"queue_length": np.minimum(rounds, 2), "departures": np.maximum(rounds - 2, 0)}
    arrays = {name: (DIMS, values[None, None, None]) for name, values in each.items()}
    arrays["time_mean"] = DIMS[:3], np.ones((1, 1, 1))
    coords = {"policy": ["x"], "arrival_rate": [1.0], "seed": [0], "round": rounds}
    return xr.Dataset(arrays, coords, attributes)


def test_time_per_arrival_counts_queries_that_never_leave() -> None:
    """Eight queries stayed one round, the first nine, and the last none: 17 / 10."""
    made = make_stranding()
    (row,) = (
        frame.tabulate_runs([made], ["time_mean", "time_per_arrival"], [4, 10])
        .filter(metric="time_per_arrival")
        .to_dicts()
    )
    assert row["round"] == 10 and row["values"] == [pytest.approx(1.7)]
    assert made.time_mean.item() == 1
    assert metrics.list_metrics([made])["time_per_arrival"].units == "rounds"


@pytest.mark.parametrize(
    ("attributes", "recorded", "known"),
    [
        ({"service": "count (count 4)"}, [], True),
        ({"users": "orbit (column seconds)"}, [], False),
        ({"users": "orbit (column seconds)"}, ["away"], True),
        ({"users": "impatient (attempts 3) and orbit (column seconds)"}, ["away"], False),
        ({"users": "impatient (attempts 3) and orbit"}, ["away", "gave_up"], True),
        ({"service": "rounds"}, ["away"], False),
        ({"users": "mine"}, ["away", "gave_up"], False),
        ({"singletons": 0.4}, [], False),
    ],
)
def test_time_per_arrival_needs_counts_of_all_queries_in_the_system(
    attributes: dict[str, Any], recorded: list[str], known: bool
) -> None:
    made = make_stranding(**attributes)
    for name in recorded:
        made[name] = 0.0 * made["departures"] + (0.2 if name == "gave_up" else 1)
    point = summaries.add_time_per_arrival(made)
    assert ("time_per_arrival" in point) == known
    if known:
        # One more is away in each round, and a fifth of those who left gave up.
        rounds, arrivals = 17 + 9 * ("away" in recorded), 10 + ("away" in recorded)
        arrivals += 2 * ("gave_up" in recorded)
        assert point.time_per_arrival.item() == pytest.approx(rounds / arrivals)


def test_pairing_narrows_the_interval_of_coupled_runs() -> None:
    ds = fabricate(num_seeds=40, horizon=200)
    paired = summaries.paired_difference(ds, "throughput", "acqb", "cqb_eps").isel(
        round=-1, arrival_rate=0
    )
    a, b = (
        summaries.throughput(ds).sel(policy=p).isel(round=-1, arrival_rate=0)
        for p in ("acqb", "cqb_eps")
    )
    low, high = scipy.stats.ttest_rel(a, b).confidence_interval(0.95)
    np.testing.assert_allclose([paired["low"], paired["high"]], [low, high], rtol=1e-9)
    unpaired = scipy.stats.ttest_ind(a, b).confidence_interval(0.95)
    assert float(paired["high"] - paired["low"]) < unpaired.high - unpaired.low


def test_paired_difference_changes_sign_with_the_order() -> None:
    ds = fabricate()
    one = summaries.paired_difference(ds, "queue_regret", "acqb", "random")
    two = summaries.paired_difference(ds, "queue_regret", "random", "acqb")
    np.testing.assert_allclose(one["mean"], -two["mean"])
    np.testing.assert_allclose(one["low"], -two["high"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("throughput", "acqb", "nobody"), "policy nobody is not in the result"),
        (("speed", "acqb", "random"), "variable is speed: choose one of queue_length"),
        (("optimal_queue_length", "acqb", "random"), "variable is optimal_queue_length"),
    ],
)
def test_paired_difference_rejects_unknown_names(
    arguments: tuple[str, str, str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        summaries.paired_difference(fabricate(), *arguments)


@pytest.mark.parametrize(("asked", "got"), [(10, 10), (19, 10), (20, 20), (999, 60)])
def test_at_round_takes_the_last_recorded_one(asked: int, got: int) -> None:
    assert int(summaries.select_round(fabricate(every=10), asked)["round"]) == got


def test_at_round_before_the_first_recorded_one_is_refused() -> None:
    with pytest.raises(ValueError, match="round is 9: the first recorded round .* is 10"):
        summaries.select_round(fabricate(every=10), 9)


@pytest.mark.parametrize("level", [0.0, 1.0, 95.0])
def test_level_must_be_a_coverage(level: float) -> None:
    with pytest.raises(ValueError, match="level is"):
        summaries.mean_ci(xr.DataArray([1.0, 2.0], dims="seed"), level=level)


def test_mean_over_a_missing_dimension_is_refused() -> None:
    with pytest.raises(ValueError, match="dim is seed: the array has run"):
        summaries.mean_ci(xr.DataArray([1.0, 2.0], dims="run"))


def test_attributes_of_points_are_merged() -> None:
    """Policies in the order in which points name them, keys sorted, every label of a proxy."""
    points = [
        fabricate(labels, rates=(rate,), num_seeds=2, horizon=horizon, every=every, K=k, dim=dim,
                  stand_in=label, path=label)
        for labels, rate, horizon, every, k, dim, label in (
            (("zero", "random"), 0.7, 20, 5, 2, 3, "a slice"),
            (("random", "acqb"), 0.6, 20, 5, 1, 3, "made up"),
            (("acqb",), 0.7, 10, 10, 1, 4, "a slice"),
        )
    ]  # fmt: skip
    one = summaries.combine_points(points)
    assert one["policy"].values.tolist() == ["zero", "random", "acqb"]
    assert one["K"].values.tolist() == [1, 2] and one["arrival_rate"].values.tolist() == [0.6, 0.7]
    # Of a point that ran fewer rounds, and of points in which another K was run, nothing is known.
    assert one["round"].values.tolist() == [5, 10, 15, 20]
    last = one["queue_length"].sel(K=1, policy="acqb").notnull().all("seed").values
    assert last.tolist() == [[True] * 4, [False, True, False, False]]
    assert one["queue_length"].sel(K=2, policy="acqb").isnull().all()
    assert one.attrs["stand_in"] == "a slice; made up"
    assert one.attrs["num_servers"] == 5 and not {"dim", "horizon", "path"} & set(one.attrs)
    assert summaries.find_differing(points) == ["K", "dim", "horizon"]
