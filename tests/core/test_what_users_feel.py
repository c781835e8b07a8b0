"""What users feel: every recorder against the rows of the queries, and these against the round."""

import numpy as np
import pytest
from tiers import cases

import cqbjax
from cqbjax.core.recorders import NAMED, TimeInSystem, queries
from cqbjax.core.recorders.time_in_system import QUANTILES, bin_of, quantile, values
from cqbjax.policies import RandomRouting
from cqbjax.sources import Arriving, Batches, Routing, Synthetic
from cqbjax.worlds import Count, Impatient, Orbit, Rounds

HORIZON = 120
DRAW = np.random.default_rng(4)
POOL = Routing(
    contexts=DRAW.normal(size=(30, 4)) / 2, utilities=DRAW.normal(size=(30, 3)) - 0.3,
    pool_size=20, dollars=DRAW.uniform(size=(30, 3)), scores=DRAW.uniform(size=(30, 3)),
)  # fmt: skip
WORLDS = {
    "paper": (POOL, [], []),
    "several": (
        Arriving(source=POOL, process=Batches(sizes=[1, 2])),
        [Orbit(return_rate=0.4), Impatient(attempts=4, leave=0.02)],
        [Count(count=2), Rounds(rounds=2)],
    ),
}
RECORDED = [name for name in NAMED if name != "queries"]


@pytest.fixture(scope="module", params=cases(WORLDS, ["several"]))
def data(request):
    source, users, service = WORLDS[request.param]
    policies = {rule: RandomRouting(schedule=rule) for rule in ("oldest", "random")}
    return cqbjax.sweep(
        policies, source, arrival_rates=[0.4], seeds=2, horizon=HORIZON, record=RECORDED,
        queries=True, users=users, service=service, capacity=96,
    )  # fmt: skip


def runs(data):
    """Yield each run's last round, and its queries' rows by field."""
    for policy in data.policy.values:
        for seed in data.seed.values:
            run = data.sel(policy=policy, seed=seed).isel(arrival_rate=0)
            rows = {name: told for name, told in queries.columns(run.queries.values).items()}
            came = ~np.isnan(rows["arrival"])
            yield run, {name: told[came] for name, told in rows.items()}


def test_rows_of_queries_keep_the_books(data):
    for run, rows in runs(data):
        last = run.isel(round=-1)
        satisfied, gave_up = rows["outcome"] == 1, rows["outcome"] == 2
        assert satisfied.sum() == last.departures > 10
        there = (rows["outcome"] == 0).sum()
        assert there == last.queue_length + last.away + last.in_service
        assert satisfied.sum() + gave_up.sum() + there == len(satisfied)
        assert (np.diff(rows["arrival"]) >= 0).all()
        gone = satisfied | gave_up
        assert (rows["departure"][gone] > rows["arrival"][gone]).all()
        assert np.isnan(rows["departure"][~gone]).all()
        served = rows["attempts"] > 0
        assert (rows["first_answer"][served] > rows["arrival"][served]).all()
        assert np.isnan(rows["first_answer"][~served]).all()
        assert (np.isnan(rows["server"]) == ~satisfied).all()
        # Each round's departures are those whose row says so.
        left = [(rows["departure"][satisfied] <= t).sum() for t in run["round"].values]
        np.testing.assert_array_equal(left, run.departures)


def test_a_world_that_is_not_the_papers_says_what_its_yardstick_is(data):
    assert "yardstick" in data.attrs


def test_every_recorder_says_what_the_rows_say(data):
    for run, rows in runs(data):
        last, satisfied = run.isel(round=-1), rows["outcome"] == 1
        times = (rows["departure"] - rows["arrival"])[satisfied].astype(int)
        attempts = rows["attempts"][satisfied]
        np.testing.assert_allclose(last.attempts, attempts.mean(), rtol=1e-5)
        gone = rows["outcome"] > 0
        np.testing.assert_allclose(last.gave_up, (~satisfied)[gone].mean(), rtol=1e-5)
        np.testing.assert_allclose(
            last.dollars, np.nansum(rows["dollars"]) / satisfied.sum(), rtol=1e-5
        )
        np.testing.assert_allclose(last.score, rows["score"][satisfied].mean(), rtol=1e-5)
        jain = times.sum() ** 2 / (len(times) * (times**2).sum())
        np.testing.assert_allclose(last.fairness, jain, rtol=1e-4)
        here = rows["outcome"] == 0
        oldest = max(
            np.max((rows["departure"] - rows["arrival"])[gone]),
            np.max((HORIZON - rows["arrival"])[here], initial=0),
        )
        assert last.largest_wait == oldest
        np.testing.assert_allclose(last.traffic.sum(), 1, rtol=1e-6)
        assert (run.traffic.isel(round=-1) > 0).all()
        counts = run.time_in_system.values
        assert counts.sum() == satisfied.sum() and counts[0].sum() == (attempts == 1).sum()
        bins = np.bincount(np.asarray(bin_of(times)), minlength=counts.shape[-1])
        np.testing.assert_array_equal(counts.sum(axis=0), bins)
        np.testing.assert_allclose(run.time_mean, times.mean(), rtol=0.01)
        for word, share in QUANTILES.items():
            known = np.sort(times)[int(np.ceil(share * len(times))) - 1]
            told = float(run[f"time_{word.replace('%', '').replace('.', '_')}"])
            assert abs(told / known - 1) < 0.02, word


def test_quantiles_of_any_times_are_within_two_percent():
    draw, horizon = np.random.default_rng(0), 100_000
    for times in (
        draw.geometric(0.3, 4000),
        np.ceil(draw.lognormal(5, 2, 4000)).clip(1, horizon).astype(int),
    ):
        bins = np.asarray(bin_of(times))
        counts = np.bincount(bins, minlength=len(values(horizon)))
        assert len(counts) == len(values(horizon)), "every time has a bin"
        assert (np.abs(values(horizon)[bins] / times - 1) < 0.02).all()
        for share in QUANTILES.values():
            known = np.sort(times)[int(np.ceil(share * len(times))) - 1]
            assert abs(quantile(counts, share, horizon) / known - 1) < 0.02
    assert np.isnan(quantile(np.zeros(5), 0.5, 10))


@pytest.mark.parametrize("name", ["dollars", "score"])
def test_a_source_without_a_table_is_refused_before_anything_runs(name):
    with pytest.raises(ValueError, match=f"record={name} needs a table with costs and scores"):
        cqbjax.sweep(
            {"random": RandomRouting()}, Synthetic(), arrival_rates=[0.4], seeds=1, horizon=10,
            record=[name],
        )  # fmt: skip


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (["waits"], "record=waits is unknown; choose from time_in_system, attempts"),
        ("attempts", "record=attempts must be a list"),
        (["attempts", "attempts"], "has the name attempts, which is taken"),
        ([TimeInSystem()] * 2, "has the name time_in_system, which is taken"),
    ],
)
def test_what_cannot_be_recorded_is_refused(record, said):
    with pytest.raises(ValueError, match=said):
        cqbjax.sweep(
            {"random": RandomRouting()}, POOL, arrival_rates=[0.4], seeds=1, horizon=10,
            record=record,
        )  # fmt: skip
