"""Outages on a schedule: an LLM that is down at night."""

import numpy as np
import pytest

import cqbjax
from cqbjax import dynamics, rng, sources

PERIOD, HORIZON = 12, 240
NIGHT = dynamics.Outages(period=PERIOD, down_from=[10, 1, 4], down_rounds=[6, 0, 12])


def test_a_server_is_down_in_the_rounds_of_its_schedule():
    problem = sources.Coin(num_servers=3).problem(1, 40)
    answers = np.asarray(NIGHT.draw(rng.run_key(0), problem))
    of_period = np.arange(40) % PERIOD + 1  # the first server is down from 10 to 3, over midnight
    np.testing.assert_array_equal(answers[:, 0], (of_period > 3) & (of_period < 10))
    assert answers[:, 1].all() and not answers[:, 2].any()


@pytest.mark.slow
def test_scheduled_outages_stop_all_departures_at_full_load():
    """At load 1 the queue is never empty: departures are binomial, of the hours it answers."""
    success, down, seeds = 0.7, 5, 40
    coin = sources.Coin(success=success, num_servers=1)
    night = dynamics.Outages(period=PERIOD, down_from=[3], down_rounds=[down])
    data = cqbjax.sweep(
        ["random"], coin, arrival_rate=[1.0], num_seeds=seeds, horizon=HORIZON, record_every=1,
        service=[night],
    ).sel(policy="random").isel(arrival_rate=0)  # fmt: skip
    hours = HORIZON // PERIOD * (PERIOD - down)
    total = data.departures.isel(round=-1).sum().item()
    error = np.sqrt(seeds * hours * success * (1 - success))
    assert abs(total - seeds * hours * success) < 4 * error
    served = data.departures.diff("round", label="upper")
    into = (served["round"] - 1) % PERIOD + 1
    closed = served.where((into >= 3) & (into < 3 + down), drop=True)
    assert closed.sizes["round"] > 0 and (closed == 0).all()


def test_invalid_outage_schedules_are_rejected():
    problem = sources.Coin(num_servers=2).problem(1, 40)
    for words, message in (
        ({"down_rounds": None}, "down_rounds must be given too"),
        ({"period": None}, "period must be given too"),
        ({"period": 0}, r"period=0 must be a number in \[1, inf\)"),
        ({"period": 5.5}, "period=5.5 must be whole rounds"),
        ({"down_from": [1, 6]}, r"down_from=.* must be 2 numbers in \[1, 5\]"),
        ({"down_rounds": [1, 6]}, r"down_rounds=.* must be 2 numbers in \[0, 5\]"),
        ({"down_rounds": [1, 0.5]}, r"down_rounds=\[1.0, 0.5\] must be whole rounds"),
    ):
        schedule = {"period": 5, "down_from": [1, 2], "down_rounds": [0, 5]}
        dynamics.Outages(**schedule).check(problem)
        with pytest.raises(ValueError, match=message):
            dynamics.Outages(**schedule | words).check(problem)
