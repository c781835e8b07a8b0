"""Worlds with known answers, by the public path: stationary means within 3.5 standard errors."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from tiers import cases

import cqbjax
from cqbjax.core.recorders import Recorder
from cqbjax.policies import Acqb, Optimal, QueueingBandit, RandomRouting
from cqbjax.sources import Coin
from cqbjax.testing import known
from cqbjax.testing.known import KNOWN
from cqbjax.worlds import Orbit

LOAD, SEEDS, HORIZON, EVERY = 0.6, 96, 1600, 10
SLOTS = 64
BURN_IN = 25  # records: 250 rounds, ten relaxations at this load
MOST_ERRORS, WIDEST = 3.5, 0.02

QUICK = ("one success rate", "two classes, likeliest first", "at most three attempts")


def close(values, expected):
    """Hold seeds' means [S] to the known one; the standard error is small, so the test is sharp."""
    error = values.std(ddof=1) / np.sqrt(len(values))
    assert error <= WIDEST * expected, f"a standard error of {error:.3g} of {expected:.3g}"
    assert abs(values.mean() - expected) <= MOST_ERRORS * error, (
        f"{values.mean():.4f} +- {error:.4f}, and {expected:.4f} is known"
    )


def swept(policies, source, rate, horizon=HORIZON, **more):
    data = cqbjax.sweep(
        policies, source, arrival_rates=[rate], seeds=SEEDS, horizon=horizon, record_every=EVERY,
        capacity=SLOTS, **more,
    )  # fmt: skip
    return data.isel(arrival_rate=0, round=slice(BURN_IN, None))


@pytest.mark.parametrize("world", cases(KNOWN, [one for one in KNOWN if one.name in QUICK]))
def test_the_mean_queue_is_the_known_one(world):
    rate = world.rate(LOAD)
    label = "optimal" if isinstance(world.policy, Optimal) else "served"
    data = swept(
        {label: world.policy},
        world.source,
        rate,
        (3 if world.service and world.service[0].lasting else 1) * HORIZON,
        users=world.users,
        service=world.service,
    )
    close(data.queue_length.sel(policy=label).mean("round").values, world.expected(rate))


@dataclasses.dataclass(frozen=True)
class Work(Recorder):
    """Work that waits, summed over rounds: 1 / m of each waiting query."""

    name, label, unit = "work", "Work that waits", "rounds"

    def start(self, problem):
        return jnp.zeros(())

    def update(self, state, round_):
        waits = round_.before.arrived > 0
        m = 1 / (1 + jnp.exp(-round_.world.utilities[round_.before.row, 0]))
        return state + jnp.sum(jnp.where(waits, 1 / m, 0.0))


POLICIES = {
    "acqb": Acqb(),
    "acqb_rr": Acqb(schedule="least_served"),
    "acqb_fallback": Acqb(retry="fallback"),
    "acqb_recall": Acqb(retry="recall"),
    "acqb_ucb": Acqb(optimism="ucb"),
    "q_ucb": QueueingBandit(),
    "q_ths": QueueingBandit(index="thompson"),
    "random": RandomRouting(),
    "newest": RandomRouting(schedule="newest"),
    "fallback": RandomRouting(retry="fallback"),
}


@pytest.mark.slow
def test_work_is_conserved_whatever_the_policy():
    """Where success depends on the query alone, no order of service changes the work."""
    rate = LOAD / known.classes()[0]
    data = swept(POLICIES, Coin(classes=known.CLASSES), rate, horizon=2000, record=[Work()])
    first, last = data.work.isel(round=0), data.work.isel(round=-1)
    mean = (last - first) / float(data["round"][-1] - data["round"][0])
    for label in data.policy.values:
        close(mean.sel(policy=label).values, known.conserved(rate))
    # The same work in other queues: the test would see a policy that idles, not one order.
    assert len(set(data.queue_length.mean(("seed", "round")).values.round(3))) > 3


@dataclasses.dataclass(frozen=True)
class Away(Recorder):
    """Queries that are away, summed over rounds."""

    name, label, unit = "away", "Away", "queries"

    def start(self, problem):
        return jnp.zeros((), jnp.int32)

    def update(self, state, round_):
        return state + jnp.sum(round_.after.arrived > 0, dtype=jnp.int32) - round_.length


@pytest.mark.slow
@pytest.mark.parametrize("back", [0.2, 0.05])
def test_an_orbit_is_as_large_as_known_and_the_server_as_idle(back):
    m, rate = known.M, LOAD * known.M
    data = swept(
        {"random": RandomRouting()}, Coin(success=m), rate, users=[Orbit(return_rate=back)],
        record=[Away()],
    ).sel(policy="random")  # fmt: skip
    failures = rate * (1 - m) / m
    rounds = float(data["round"][-1] - data["round"][0])
    orbit = (data.away.isel(round=-1) - data.away.isel(round=0)) / rounds
    close(orbit.values, failures * (1 - back) / back)
    close((data.queue_length == 0).mean("round").values, 1 - rate / m)


@pytest.mark.slow
def test_the_largest_success_rate_first_is_the_shortest_queue():
    """The c-mu rule: no other order of the same work waits for less."""
    rate = LOAD / known.classes()[0]
    data = swept(
        {"oldest": known.OLDEST, "newest": known.NEWEST}, Coin(classes=known.CLASSES), rate
    )
    mean = data.queue_length.mean("round")
    for label in ("oldest", "newest"):
        lead = (mean.sel(policy=label) - mean.sel(policy="optimal")).values
        assert lead.mean() > MOST_ERRORS * lead.std(ddof=1) / np.sqrt(len(lead))


@pytest.mark.parametrize("load", [0.6, 0.95])
def test_closed_forms_agree_where_worlds_coincide(load):
    """One attempt a round, one class, one place: each formula is another's special case."""
    rate = load * known.M
    plain = known.geometric(known.M, rate)
    many = known.attempts(known.M, 200)
    assert known.general(*many, rate) == pytest.approx(plain)
    assert known.general(*known.lasting(known.M, 1, 0), rate) == pytest.approx(plain)
    assert known.servers(known.M, 1, rate) == pytest.approx(plain, rel=2e-3)
    assert known.leaving(known.M, 0.0, rate) == pytest.approx(plain, rel=2e-3)
