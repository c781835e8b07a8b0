"""What comes is what leaves and what is there, exactly, in any combination of kinds."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cqbjax.core import rng, simulate
from cqbjax.core.pytree import as_arrays
from cqbjax.core.scenario import with_dynamics
from cqbjax.dynamics import (
    DelayedFeedback,
    Impatience,
    LostFeedback,
    Orbit,
    Outages,
    PersistentUsers,
    ServiceChannels,
    ServiceTimes,
    SingleChannel,
)
from cqbjax.policies import Acqb, OptimalPolicy, RandomRouting
from cqbjax.sources import (
    ArrivalWrapper,
    BatchArrivals,
    BurstyArrivals,
    Coin,
    DriftWrapper,
    Synthetic,
)

HORIZON, SLOTS, RATE = 60, 128, 0.6
COIN, SYNTHETIC = Coin(classes=[0.2, 0.5], num_servers=3), Synthetic(num_servers=3, dim=2)

SCENARIOS = {
    "paper": (SYNTHETIC, [], []),
    "paper's kinds": (SYNTHETIC, [PersistentUsers()], [SingleChannel()]),
    "orbit": (COIN, [Orbit(return_rate=0.3)], []),
    "delays": (COIN, [Orbit(delays=[1, 4, 9])], []),
    "impatient": (COIN, [Impatience(attempts=3, give_up=0.2, leave=0.1, pretends=0.5)], []),
    "patience": (ArrivalWrapper(source=COIN, process=BatchArrivals(most=6)),
                 [Impatience(patience=4)], []),
    "both": (COIN, [Orbit(return_rate=0.4), Impatience(attempts=2, patience=7)], []),
    "three channels": (ArrivalWrapper(source=COIN, process=BatchArrivals(most=6)), [],
                     [ServiceChannels(count=3)]),
    "lasting": (COIN, [], [ServiceTimes(rounds=3)]),
    "all of service": (
        SYNTHETIC, [],
        [ServiceChannels(count=2), ServiceTimes(rounds=2.5, law="geometric"),
         Outages(share=0.3, length=4), LostFeedback()],
    ),
    "everything": (
        ArrivalWrapper(source=DriftWrapper(source=SYNTHETIC, quarter=30),
                       process=BatchArrivals(sizes=[1, 2])),
        [Orbit(return_rate=0.5), Impatience(give_up=0.2, leave=0.1)],
        [ServiceChannels(count=3), ServiceTimes(rounds=[1, 2, 3]), Outages(share=0.2, length=5),
         LostFeedback(lost=0.5)],
    ),
    "late": (COIN, [Orbit(return_rate=0.4)],
             [DelayedFeedback(delay=6), ServiceChannels(count=2), ServiceTimes(rounds=2)]),
    "bursts": (ArrivalWrapper(source=COIN, process=BurstyArrivals(burst=0.5)), [Orbit()],
               [ServiceTimes(rounds=2)]),
}  # fmt: skip
POLICIES = {
    "random": RandomRouting(),
    "optimal": OptimalPolicy(),
    "acqb": Acqb(),
    "fallback": Acqb(retry="fallback"),
}


def play(scenario_name, policy, slots=SLOTS, seeds=3, size=1, first=0):
    """Return what happened round by round, leaves [S, T, ...], and what is left [S, ...]."""
    source, users, service = SCENARIOS[scenario_name]
    source = as_arrays(with_dynamics(source, users, service))
    return _play(source, as_arrays(policy), slots, seeds, size, first)


@functools.partial(jax.jit, static_argnums=(2, 3, 4))
def _play(source, policy, slots, seeds, size, first):
    problem = source.problem(size, HORIZON)

    def one(seed):
        instance = simulate.draw_instance(rng.run_key(seed), source, jnp.float32(RATE), problem)
        carry = simulate.start(policy, problem, instance, slots)

        def step(carry, t):
            after, decision = simulate.run_round(policy, problem, instance, carry, t)
            return after, (decision._replace(state=()), after._replace(state=()))

        left, reported = jax.lax.scan(step, carry, jnp.arange(1, HORIZON + 1))
        arrives = jnp.broadcast_to(instance.arrivals.astype(jnp.int32), (HORIZON,))
        return reported, arrives, left._replace(state=())

    return jax.vmap(one)(first + jnp.arange(seeds))


def status(after, round_):
    """Return how many wait, are away and are in service after a round: each a number."""
    there = after.queue.arrived > 0
    if after.dynamics is None:
        return there.sum(), 0, 0
    waits = there & (after.dynamics.return_round <= round_ + 1)
    held = there & (after.dynamics.return_round == np.iinfo(np.int32).max)
    return waits.sum(), there.sum() - waits.sum() - held.sum(), held.sum()


def books(scenario_name, policy, size=1):
    """Return per seed: arrivals, accepted, those who are gone, and what is there, by round."""
    (decision, after), arrives, _ = jax.tree.map(np.asarray, play(scenario_name, policy, size=size))
    for seed in range(len(arrives)):
        rounds = []
        for t in range(1, HORIZON + 1):
            at = jax.tree.map(lambda leaf, t=t, seed=seed: leaf[seed, t - 1], after)
            rounds.append(status(at, t))
        reported = jax.tree.map(lambda leaf, seed=seed: leaf[seed], (decision, after))
        yield reported, arrives[seed], np.array(rounds)


CASES = [(scenario_name, "random") for scenario_name in SCENARIOS]
CASES += [
    ("everything", "acqb"),
    ("late", "acqb"),
    ("all of service", "optimal"),
    ("both", "fallback"),
]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(case))
def test_arrivals_equal_departures_abandonments_and_queries_in_the_system(case):
    """In every round: arrivals = satisfied + gave up + waiting + away + in service."""
    scenario_name, label = case
    for (decision, after), arrives, there in books(scenario_name, POLICIES[label]):
        came = np.cumsum(arrives)
        satisfied = after.recorded["departures"]
        gone = came - satisfied - there.sum(axis=1)
        assert (gone >= 0).all() and (np.diff(gone) >= 0).all()
        assert (np.diff(satisfied) >= 0).all()
        np.testing.assert_array_equal(after.recorded["queue_length"], there[:, 0])
        impatient = any(isinstance(one, Impatience) for one in SCENARIOS[scenario_name][1])
        assert impatient or (gone == 0).all()
        assert not impatient or gone[-1] > 0
        # Who is satisfied was served: a choice that is none of the outside option's.
        chosen = decision.valid & (decision.choice < decision.servers.shape[-1])
        own = chosen.reshape(HORIZON, -1).sum(axis=1)
        assert (np.cumsum(own) == satisfied).all()


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(case))
def test_sojourn_times_and_ages_add_up_to_the_summed_number_in_system(case):
    """Sum over t of the number in the system = sojourns of who left + ages of who is there."""
    scenario_name, label = case
    for (_, after), arrives, there in books(scenario_name, POLICIES[label]):
        t = np.arange(1, HORIZON + 1)
        arrived = after.queue.arrived
        total = sojourns = 0
        previous = np.zeros(SLOTS, int)
        for now, round_ in zip(arrived, t, strict=True):
            left = (previous > 0) & (now != previous)
            sojourns += (round_ - previous[left]).sum()
            total += (previous > 0).sum()
            previous = now
        ages = (HORIZON - previous[previous > 0]).sum()
        assert total == sojourns + ages
        assert total == there[:-1].sum()
        assert (previous > 0).sum() == there[-1].sum() <= np.sum(arrives)


# What is in these is in the others too.
SIMPLER = ("orbit", "both", "three channels", "lasting", "paper's kinds")


@pytest.mark.slow
@pytest.mark.parametrize("scenario_name", [one for one in SCENARIOS if one not in SIMPLER])
def test_capacity_and_batch_do_not_change_a_run(scenario_name):
    wide, _, end = play(scenario_name, RandomRouting())
    alone, _, _ = play(scenario_name, RandomRouting(), slots=96, seeds=1, first=1)
    assert not end.overflow.any()
    for one, other in zip(jax.tree.leaves(wide[0]), jax.tree.leaves(alone[0]), strict=True):
        np.testing.assert_array_equal(np.asarray(one)[1], np.asarray(other)[0])


def test_persistent_users_and_single_channel_return_the_source_itself():
    assert with_dynamics(COIN, [PersistentUsers()], [SingleChannel()]) is COIN


@pytest.mark.slow
def test_persistent_users_and_single_channel_compile_to_the_same_program():
    (decision, after), _, _ = play("paper", RandomRouting())
    (same, again), _, _ = play("paper's kinds", RandomRouting())
    for one, other in zip(
        jax.tree.leaves((decision, after)), jax.tree.leaves((same, again)), strict=True
    ):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
def test_queries_in_orbit_in_service_or_selected_are_not_served():
    """Each served query waited: nobody is at two places, and nobody is served while away."""
    (decision, after), _, _ = jax.tree.map(np.asarray, play("everything", RandomRouting()))
    assert (decision.query[decision.valid] > 0).all()
    busy = after.dynamics.attempts.active
    held = (after.dynamics.return_round == np.iinfo(np.int32).max) & (after.queue.arrived > 0)
    np.testing.assert_array_equal(busy.sum(axis=-1), held.sum(axis=-1))
    slots = np.where(busy, after.dynamics.attempts.action.slot, -1 - np.arange(3))
    assert all(len(set(row)) == 3 for row in slots.reshape(-1, 3))
