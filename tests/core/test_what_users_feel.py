"""What users feel: every recorder against the rows of the queries, and these against the round."""

import numpy as np
import pytest
from books import RECORDED, check_recorders, check_rows, check_time, runs
from tiers import cases

import cqbjax
from cqbjax.core.recorders import TimeInSystem
from cqbjax.core.recorders.time_in_system import QUANTILES, bin_of, quantile, values
from cqbjax.policies import Acqb, RandomRouting
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


@pytest.fixture(scope="module", params=cases(WORLDS, ["several"]))
def data(request):
    source, users, service = WORLDS[request.param]
    return cqbjax.sweep(
        {"random": RandomRouting(schedule="oldest"), "acqb": Acqb()}, source, arrival_rates=[0.4],
        seeds=2, horizon=HORIZON, record=RECORDED, queries=True, users=users, service=service,
        capacity=96,
    )  # fmt: skip


def test_rows_of_queries_keep_the_books(data):
    for run, rows in runs(data):
        assert (rows["outcome"] == 1).sum() > 10
        check_rows(run, rows)
        check_time(run, rows)


def test_every_recorder_says_what_the_rows_say(data):
    for run, rows in runs(data):
        check_recorders(run, rows, HORIZON)
        assert (run.traffic.isel(round=-1) > 0).all()


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
