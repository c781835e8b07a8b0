"""The books of a sweep that recorded everything: rows of queries, recorders, and what there is."""

import numpy as np

from cqbjax.core.recorders import OPTIONAL, queries
from cqbjax.core.recorders.queries import GAVE_UP, SATISFIED, THERE
from cqbjax.core.recorders.users import QUANTILES, time_bin
from cqbjax.results.summaries import add_time_per_arrival

# Of every source, and of those that know costs and scores.
OF_TABLES = ("dollars", "score")
RECORDED = [name for name in OPTIONAL if name != "queries"]
OF_ANY = [name for name in RECORDED if name not in OF_TABLES]


def runs(data):
    """Yield each run of a sweep, and its queries' rows by field, of those who came."""
    for policy in data.policy.values:
        for seed in data.seed.values:
            run = data.sel(policy=policy, seed=seed).isel(arrival_rate=0)
            rows = {
                name: reported
                for name, reported in queries.query_columns(run.queries.values).items()
            }
            came = ~np.isnan(rows["arrival"])
            yield run, {name: reported[came] for name, reported in rows.items()}


def check_rows(run, rows):
    """Hold what came to be what left and what is there, at the end and in every recorded round."""
    last = run.isel(round=-1)
    satisfied, gave_up = rows["outcome"] == SATISFIED, rows["outcome"] == GAVE_UP
    there = (rows["outcome"] == THERE).sum()
    assert satisfied.sum() == last.departures
    assert there == last.queue_length + last.away + last.in_service
    assert satisfied.sum() + gave_up.sum() + there == len(satisfied)
    assert (np.diff(rows["arrival"]) >= 0).all()
    gone = satisfied | gave_up
    assert (rows["departure"][gone] > rows["arrival"][gone]).all()
    assert np.isnan(rows["departure"][~gone]).all()
    served, first = rows["attempts"] > 0, rows["first_service"]
    assert (first[served] > rows["arrival"][served]).all()
    # Who has begun and has no answer yet is in service now, for the first time.
    begun = ~np.isnan(first) & ~served
    assert (rows["outcome"][begun] == THERE).all() and begun.sum() <= last.in_service
    assert (np.isnan(rows["server"]) == ~satisfied).all()
    inside = run.queue_length + run.away + run.in_service
    for t, present, departures in zip(
        run["round"].values, inside.values, run.departures.values, strict=True
    ):
        left = rows["departure"] <= t
        assert (left & satisfied).sum() == departures
        assert ((rows["arrival"] <= t) & ~left).sum() == present


def check_time(run, rows):
    """Hold the sum over rounds of who is in the system to sojourns and ages; every round counts."""
    inside = (run.queue_length + run.away + run.in_service).values
    rounds = run["round"].values
    np.testing.assert_array_equal(rounds, np.arange(1, len(rounds) + 1))
    gone = ~np.isnan(rows["departure"])
    sojourns = (rows["departure"] - rows["arrival"])[gone].sum()
    ages = (rounds[-1] - rows["arrival"])[~gone].sum()
    # N(t) is recorded after round t - 1, and nobody is there in round 1.
    assert inside[:-1].sum() == sojourns + ages
    mean = add_time_per_arrival(run).time_per_arrival
    np.testing.assert_allclose(mean, (sojourns + ages) / len(gone), rtol=1e-5)


def check_recorders(run, rows, horizon):
    """Hold every recorder that was asked for to what the rows say."""
    last, satisfied, gone = run.isel(round=-1), rows["outcome"] == SATISFIED, rows["outcome"] > 0
    times = (rows["departure"] - rows["arrival"])[satisfied].astype(int)
    attempts = rows["attempts"][satisfied]
    np.testing.assert_allclose(last.attempts, attempts.mean(), rtol=1e-5)
    np.testing.assert_allclose(last.gave_up, (~satisfied)[gone].mean(), rtol=1e-5)
    if "dollars" in run:
        paid = np.nansum(rows["dollars"]) / satisfied.sum()
        np.testing.assert_allclose(last.dollars, paid, rtol=1e-5)
        np.testing.assert_allclose(last.score, rows["score"][satisfied].mean(), rtol=1e-5)
    jain = times.sum() ** 2 / (len(times) * (times**2).sum())
    np.testing.assert_allclose(last.fairness, jain, rtol=1e-4)
    left = (rows["departure"] - rows["arrival"])[gone]
    ages = (horizon - rows["arrival"])[~gone]
    assert last.largest_wait == max(np.max(left), np.max(ages, initial=0))
    np.testing.assert_allclose(last.traffic.sum(), 1, rtol=1e-6)
    _check_times(run, times, attempts)


def _check_times(run, times, attempts):
    counts = run.time_in_system.values
    assert counts.sum() == len(times) and counts[0].sum() == (attempts == 1).sum()
    bins = np.bincount(np.asarray(time_bin(times)), minlength=counts.shape[-1])
    np.testing.assert_array_equal(counts.sum(axis=0), bins)
    for who, own in {
        "": times, "first_": times[attempts == 1], "later_": times[attempts > 1]
    }.items():  # fmt: skip
        reported = {word: float(run[f"time_{who}{_name(word)}"]) for word in ("mean", *QUANTILES)}
        if not len(own):
            assert np.isnan(list(reported.values())).all(), who
            continue
        np.testing.assert_allclose(reported.pop("mean"), own.mean(), rtol=0.01)
        for word, share in QUANTILES.items():
            known = np.sort(own)[int(np.ceil(share * len(own))) - 1]
            assert abs(reported[word] / known - 1) < 0.02, (who, word)


def _name(word):
    return word.replace("%", "").replace(".", "_")
