"""Scenarios with known answers: distributions, classes, abandonment, best choices."""

import numpy as np
import pytest
from stationary import WaitingByRow, assert_less, close, mean_per_round, sweep_stationary

from cqbjax.core.recorders import queries
from cqbjax.dynamics import Impatience, ServiceChannels
from cqbjax.policies import OptimalPolicy, RandomRouting
from cqbjax.sources import ArrivalWrapper, BatchArrivals, Coin
from tests.reference import known_queues, queues

LOAD = 0.6
M, RATE = known_queues.M, LOAD * known_queues.M
# Where any policy would do.
ANY = {"optimal": OptimalPolicy()}

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("all_as_in_a_study")]


def test_fifo_queue_and_sojourn_distributions_match_geo_geo_1():
    """Geo/Geo/1: how often nobody waits, how the law falls off, and how long queries take."""
    data = sweep_stationary(
        {"oldest": known_queues.OLDEST},
        known_queues.COIN,
        RATE,
        seeds=128,
        horizon=6000,
        queries=True,
    ).sel(policy="oldest")
    length = data.queue_length.values
    shares = [(length == n).mean(axis=1) for n in range(4)]
    close(shares[0], 1 - RATE / M)
    ratio = RATE * (1 - M) / (M * (1 - RATE))
    for n in (1, 2):
        residual = shares[n + 1] - ratio * shares[n]
        close(ratio + residual / shares[n].mean(), ratio)
    rows = queries.query_columns(data.queries.values)
    # Of those who came early enough to have left, and late enough to have met a usual queue.
    whole = (rows["arrival"] > 300) & (rows["arrival"] < 5800)
    assert (rows["outcome"][whole] == 1).all()
    waits = np.where(whole, rows["departure"] - rows["arrival"], np.nan)
    close(np.nanmean(waits, axis=1), (1 - RATE) / (M - RATE))
    for k in (1, 2, 3):
        longer = np.where(whole, waits > k, np.nan)
        close(np.nanmean(longer, axis=1), ((1 - M) / (1 - RATE)) ** k)


def test_mean_queues_by_class_match_preemptive_priority():
    rate = LOAD / known_queues.MIXED[0]
    data = sweep_stationary(
        {"oldest": known_queues.OLDEST},
        known_queues.TWO,
        rate,
        seeds=100,
        horizon=4000,
        record=[WaitingByRow()],
    )
    slow, fast = mean_per_round(data.waiting).sel(policy="optimal").values.T
    for values, expected in zip(
        (slow, fast), queues.preemptive(known_queues.CLASSES, rate), strict=True
    ):
        close(values, expected)


@pytest.mark.parametrize(
    ("users", "rate", "share"),
    [
        (
            Impatience(attempts=known_queues.MOST), LOAD / known_queues.TRIED[0],
            (1 - M) ** known_queues.MOST,
        ),
        (
            Impatience(give_up=known_queues.GIVE_UP), RATE,
            (1 - M) * known_queues.GIVE_UP / (M + (1 - M) * known_queues.GIVE_UP),
        ),
    ],
    ids=["attempts", "chance"],
)  # fmt: skip
def test_abandonment_share_matches_the_closed_form(users, rate, share):
    data = sweep_stationary(
        ANY, known_queues.COIN, rate, seeds=100, horizon=2000, users=[users], record=["gave_up"]
    )
    close(data.gave_up.isel(policy=0, round=-1).values, share)


def test_departure_and_abandonment_rates_add_up_to_the_arrival_rate():
    """The rate of arrivals is m P(Q > 0) + th E(Q - 1)^+."""
    users = [Impatience(leave=known_queues.LEAVE)]
    data = sweep_stationary(
        ANY, known_queues.COIN, RATE, seeds=100, horizon=3000, users=users, record=["gave_up"]
    )
    length = data.queue_length.isel(policy=0)
    unserved = known_queues.LEAVE * np.maximum(length - 1, 0).mean("round")
    close((M * (length > 0).mean("round") + unserved).values, RATE)
    law = queues.law_of_channels(M, 1, known_queues.LEAVE, RATE)
    share = known_queues.LEAVE * (queues.mean(law) - 1 + law[0]) / RATE
    close(data.gave_up.isel(policy=0, round=-1).values, share, widest=0.03)


def test_mean_number_of_busy_channels_is_the_offered_load():
    """Geo/Geo/c: E min(Q, c) = l / m."""
    m, channels = known_queues.CHANNELS_M, known_queues.CHANNELS
    data = sweep_stationary(
        ANY, Coin(success=m), LOAD * channels * m, seeds=64, horizon=2000,
        service=[ServiceChannels(count=channels)],
    )  # fmt: skip
    taken = np.minimum(data.queue_length.isel(policy=0), channels)
    close(taken.mean("round").values, LOAD * channels)


@pytest.mark.parametrize("channels", [16, 3], ids=["all served", "leaving as fast as served"])
def test_queue_length_is_poisson_at_a_constant_departure_rate_per_query(channels):
    """Poisson arrivals, everybody served; or unserved ones who leave as fast: Q ~ Poisson(a/m)."""
    m, rate = known_queues.CHANNELS_M, 0.75
    users = [Impatience(leave=m)] if channels == 3 else []
    source = ArrivalWrapper(source=Coin(success=m), process=BatchArrivals(most=10))
    data = sweep_stationary(
        ANY,
        source,
        rate,
        seeds=64,
        horizon=2500,
        users=users,
        service=[ServiceChannels(count=channels)],
    )
    length, mean = data.queue_length.isel(policy=0), rate / m
    close(length.mean("round").values, mean)
    close(((length - mean) ** 2).mean("round").values, mean)
    law = mean ** np.arange(6) / np.cumprod([1, 1, 2, 3, 4, 5]) * np.exp(-mean)
    for n in (1, 2, 3, 4):
        close((length == n).mean("round").values, law[n])


def test_abandonments_at_several_channels_match_erlang_a():
    """Erlang-A in small rounds: its mean, and who abandons, th E(Q - c)^+ / l, by the chain.

    `test_chains_agree_with_their_closed_forms` takes the chain to continuous time.
    """
    m, leave, rate, channels = 0.05, 0.03, 0.135, known_queues.CHANNELS
    law = queues.law_of_channels(m, channels, leave, rate)
    data = sweep_stationary(
        ANY, Coin(success=m), rate, seeds=128, horizon=8000, every=20,
        users=[Impatience(leave=leave)], service=[ServiceChannels(count=channels)],
        record=["gave_up"],
    )  # fmt: skip
    close(data.queue_length.isel(policy=0).mean("round").values, queues.mean(law))
    beyond = np.maximum(np.arange(len(law)) - channels, 0) @ law
    close(data.gave_up.isel(policy=0, round=-1).values, leave * beyond / rate)


def test_serving_the_largest_success_rate_first_minimises_the_queue():
    """The c-mu rule; where success rates are hidden, whoever has failed least has the largest."""
    chances = np.array([0.4, 0.8])
    rules = ("least_served", "random", "oldest", "newest")
    data = sweep_stationary(
        {rule: RandomRouting(schedule=rule) for rule in rules}, Coin(classes=chances),
        LOAD / queues.mixed(chances)[0], seeds=100, horizon=4000,
    )  # fmt: skip
    mean = data.queue_length.mean("round")
    best, index = mean.sel(policy="optimal"), mean.sel(policy="least_served")
    for rule in rules:
        assert_less(best, mean.sel(policy=rule))
    for rule in ("random", "oldest", "newest"):
        assert_less(index, mean.sel(policy=rule))
