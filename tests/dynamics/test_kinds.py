"""What each kind of users and of service draws, says and refuses, beside plain words."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiers import cases

from cqbjax.core import rng, simulate
from cqbjax.core.scenario import (
    Dynamics,
    Reaction,
    Scenario,
    ServiceModel,
    UserModel,
    oracle_is_heuristic,
    with_dynamics,
)
from cqbjax.core.types import Problem
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
from cqbjax.dynamics._template import BacksOff
from cqbjax.dynamics.users import MAX_ROUNDS, count_rounds, draw_geometric
from cqbjax.sources import ArrivalWrapper, BatchArrivals, Coin

HORIZON, KEY = 3000, rng.run_key(1)
PROBLEM = Problem(3, 1, 1, 1, HORIZON, "disjoint", True, channels=2, max_arrivals=2)
DRAWS = HORIZON * 2
INFINITE = float("inf")


def draw_kind(kind, problem=PROBLEM):
    """Draw what a kind draws."""
    kind.check(problem)
    return jax.tree.map(np.asarray, kind.draw(KEY, problem))


def is_near(share, known, number=DRAWS):
    """Hold a share to a probability within five standard errors."""
    return abs(share - known) <= 5 * math.sqrt(known * (1 - known) / number)


def test_orbit_times_are_geometric_or_from_a_table():
    orbit_delays = draw_kind(Orbit(return_rate=0.25))
    assert (
        orbit_delays.shape == (HORIZON, 2)
        and orbit_delays.dtype == np.int32
        and orbit_delays.min() == 1
    )
    for rounds in (1, 2, 3):
        assert is_near((orbit_delays == rounds).mean(), 0.25 * 0.75 ** (rounds - 1))
    assert (draw_kind(Orbit(return_rate=1.0)) == 1).all()
    table = draw_kind(Orbit(delays=[1, 4, 4, 9]))
    assert [
        is_near((table == one).mean(), share) for one, share in ((1, 0.25), (4, 0.5), (9, 0.25))
    ]
    assert set(np.unique(table)) == {1, 4, 9}
    reaction = Orbit().react(jnp.int32(5), jnp.int32(2))
    assert (
        bool(reaction.abandons),
        bool(reaction.looks_satisfied),
        int(reaction.return_delay),
    ) == (
        False,
        False,
        5,
    )


def test_trials_up_to_a_success_follow_their_uniform():
    uniform = jnp.asarray([0.0, 0.5, 0.75 - 1e-4, 0.75 + 1e-4, 0.999])
    known = 1 + np.floor(np.log1p(-np.asarray(uniform)) / np.log(0.5))
    np.testing.assert_array_equal(draw_geometric(uniform, 0.5), known)
    assert draw_geometric(jnp.float32(0.9), 1e-30) == MAX_ROUNDS


def test_delays_are_rounded_up_to_at_least_one_round():
    assert count_rounds(np.array([0.0, 3.0, 4.0, 4.1]), 2.0).tolist() == [1, 2, 2, 3]
    for seconds, length, message in (
        ([1.0], 0, "round_seconds=0 must be above 0"),
        ([], 1, "must be finite seconds"),
        ([-1.0], 1, "must be finite seconds"),
        ([np.nan], 1, "must be finite seconds"),
    ):
        with pytest.raises(ValueError, match=message):
            count_rounds(np.array(seconds), length)


def test_impatient_users_abandon_after_the_last_attempt_or_at_random():
    kind = Impatience(attempts=3, give_up=0.2, pretends=0.6)
    uniforms = draw_kind(kind)
    assert uniforms.shape == (HORIZON, 2, 2)
    for attempts, (own, pretending) in ((2, (0.1, 0.5)), (2, (0.3, 0.5)), (3, (0.3, 0.7))):
        reaction = kind.react(jnp.asarray([own, pretending]), jnp.int32(attempts))
        assert bool(reaction.abandons) == (attempts >= 3 or own < 0.2)
        assert bool(reaction.looks_satisfied) == (pretending < 0.6) and reaction.return_delay == 1
    assert (
        draw_kind(PersistentUsers()) == ()
        and not PersistentUsers().react((), jnp.int32(9)).abandons
    )


def test_patience_is_a_number_of_rounds_or_geometric():
    waits = np.asarray(Impatience(patience=4).draw_patience(KEY, PROBLEM))
    assert waits.shape == (HORIZON, 2) and (waits == 4).all()
    assert (np.asarray(Impatience().draw_patience(KEY, PROBLEM)) == MAX_ROUNDS).all()
    some = np.asarray(Impatience(leave=0.5, patience=3).draw_patience(KEY, PROBLEM))
    assert (
        is_near((some == 1).mean(), 0.5) and is_near((some == 3).mean(), 0.25) and some.max() == 3
    )


def test_service_time_is_that_of_the_slowest_server_fixed_or_geometric():
    servers = jnp.asarray([0, 2])
    uniforms = draw_kind(ServiceTimes(rounds=2))
    assert (
        uniforms.shape == (HORIZON, 2) and ServiceTimes.multi_round and not ServiceModel.multi_round
    )
    assert (
        ServiceTimes(rounds=2).service_time(jnp.zeros(2), jnp.int32(1), jnp.int32(0), servers) == 2
    )
    assert (
        ServiceTimes(rounds=[3, 9, 2]).service_time(
            jnp.zeros(2), jnp.int32(1), jnp.int32(0), servers
        )
        == 3
    )
    taken = jax.vmap(ServiceTimes(rounds=4, law="geometric").service_time, (0, None, None, None))(
        jnp.asarray(uniforms), jnp.int32(1), jnp.int32(0), servers
    )
    assert is_near(np.mean(np.asarray(taken) == 1), 0.25, HORIZON) and np.asarray(taken).min() == 1
    assert abs(np.mean(taken) - 4) < 5 * math.sqrt(12 / HORIZON)
    average = ServiceTimes(rounds=4, law="geometric")
    alone = average.service_time(jnp.asarray(uniforms[5]), jnp.int32(1), jnp.int32(0), servers)
    assert alone == taken[5]


def test_outages_have_their_share_and_mean_length():
    there = draw_kind(Outages(share=0.25, length=5.0))
    assert there.shape == (HORIZON, 3) and there.dtype == bool
    ends = there[1:] & ~there[:-1]
    assert abs((~there).mean() - 0.25) < 0.04
    assert abs((~there[:-1]).sum() / ends.sum() - 5.0) < 0.7
    assert not (there[:, 0] == there[:, 1]).all()
    some = draw_kind(Outages(share=0.5, length=3.0, servers=[1]))
    assert some[:, [0, 2]].all() and not some[:, 1].all()
    assert (
        draw_kind(Outages(share=0.0)).all() and (~draw_kind(Outages(share=0.5, servers=[]))).any()
    )
    joins = draw_kind(Outages(since=[1, 7, 1], until=[9, HORIZON, HORIZON]))
    rounds = np.arange(1, HORIZON + 1)
    np.testing.assert_array_equal(joins[:, 0], rounds <= 9)
    np.testing.assert_array_equal(joins[:, 1], rounds >= 7)
    assert joins[:, 2].all() and Outages().available(joins[0]).tolist() == [True, False, True]
    # Servers without random outages join and leave all the same.
    both = Outages(share=0.5, servers=[2], since=[1, 7, 1], until=[9, HORIZON, HORIZON])
    np.testing.assert_array_equal(draw_kind(both)[:, :2], joins[:, :2])


def test_outages_are_as_frequent_in_the_first_rounds_as_later():
    down = ~draw_kind(
        Outages(share=0.25, length=50.0), PROBLEM._replace(num_servers=4000, horizon=9)
    )
    assert all(is_near(share, 0.25, 4000) for share in down.mean(axis=1))


def test_feedback_is_lost_with_its_probability():
    received = draw_kind(LostFeedback(lost=0.3))
    assert received.shape == (HORIZON, 2) and is_near(received.mean(), 0.7)
    assert draw_kind(LostFeedback(lost=0.0)).all() and not draw_kind(LostFeedback(lost=1.0)).any()
    assert bool(LostFeedback().feedback_arrives(jnp.asarray([True, False]), jnp.int32(0)))


def test_template_user_model_backs_off_exponentially():
    assert draw_kind(BacksOff()).shape == (HORIZON, 2)
    reaction = BacksOff(rounds=2.0).react(jnp.float32(0.5), jnp.int32(3))
    assert int(reaction.return_delay) == 9 and not reaction.abandons


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Orbit(return_rate=0.0), r"return_rate=0 must be a number in \(0, 1\]"),
        (Orbit(return_rate=1.1), r"return_rate=1.1 must be a number in \(0, 1\]"),
        (Orbit(delays=[0, 2]), "delays must be a list of rounds, each at least 1"),
        (Orbit(delays=[[2]]), "delays must be a list of rounds"),
        (Orbit(delays=[2e9]), "delays must be a list of rounds"),
        (Impatience(attempts=0), "attempts=0 must be a whole number, at least 1, or infinite"),
        (Impatience(attempts=1.5), "attempts=1.5 must be a whole number"),
        (Impatience(patience=0.5), "patience=0.5 must be a whole number"),
        (Impatience(give_up=1.2), r"give_up=1.2 must be a number in \[0, 1\]"),
        (Impatience(leave=-0.1), r"leave=-0.1 must be a number in \[0, 1\]"),
        (Impatience(pretends=2), r"pretends=2 must be a number in \[0, 1\]"),
        (ServiceTimes(rounds=[1, 2]), "must be a number, one for each of 3 servers"),
        (ServiceTimes(rounds=0.5), "rounds=0.5 must be at least 1 round"),
        (ServiceTimes(rounds=INFINITE), "rounds=inf must be at least 1 round"),
        # A word that was read in a file is an object of its own.
        (
            ServiceTimes(rounds=1.5, law="".join("fixed")),
            "rounds=1.5 must be whole where law=fixed",
        ),
        (Outages(share=1.0), r"share=1 must be a number in \[0, 1\)"),
        (Outages(share=-0.1), r"share=-0.1 must be a number in \[0, 1\)"),
        (Outages(share=0.75, length=2.9), "length=2.9 must be at least 3 rounds"),
        (Outages(length=0.5), "length=0.5 must be at least 1 rounds"),
        (Outages(length=INFINITE), "length=inf must be"),
        (Outages(servers=[3]), r"servers=\[3.0\] must be numbers in 0..2"),
        (Outages(since=[1, 2]), "must be 3 numbers in .1, inf., one for each server"),
        (Outages(until=[1]), "must be 3 numbers in .1, inf., one for each server"),
        (LostFeedback(lost=1.5), r"lost=1.5 must be a number in \[0, 1\]"),
        (LostFeedback(lost=-0.5), r"lost=-0.5 must be a number in \[0, 1\]"),
        (ServiceChannels(count=0), "count=0 must be a whole number in"),
        (ServiceChannels(count=2.0), "count=2.0 must be a whole number"),
        (BacksOff(rounds=0.5), "rounds=0.5 must be at least 1"),
    ],
)
def test_out_of_range_settings_of_models_are_rejected(kind, message):
    with pytest.raises(ValueError, match=message):
        kind.check(PROBLEM)


def test_service_times_per_prompt_need_a_table_of_the_same_prompts():
    table = ServiceTimes(rounds=np.ones((7, 3)))
    plain = PROBLEM._replace(pooled=False)
    table.check(plain._replace(pooled=True, num_rows=7))
    table.check(plain._replace(num_prompts=7))
    for other in (plain._replace(num_rows=7), plain._replace(pooled=True, num_rows=8)):
        with pytest.raises(ValueError, match=r"rounds of shape \(7, 3\) must be a number"):
            table.check(other)


def test_boundary_settings_of_models_are_accepted():
    for kind in (
        Orbit(return_rate=1), Orbit(delays=[1, 1e9]),
        Impatience(), Impatience(attempts=1, patience=1),
        Impatience(give_up=1, leave=1, pretends=1), ServiceTimes(),
        ServiceTimes(rounds=1.5, law="geometric"),
        Outages(share=0.75, length=3), Outages(servers=[0, 2], since=[1, 1, 1], until=[5, 5, 5]),
        LostFeedback(lost=0), LostFeedback(lost=1), ServiceChannels(), ServiceChannels(count=3),
        BacksOff(rounds=1), SingleChannel(), PersistentUsers(),
    ):  # fmt: skip
        kind.check(PROBLEM)
    assert ServiceChannels(count=3).channels == 3 and SingleChannel().channels == 1
    assert (
        SingleChannel.matches_paper
        and PersistentUsers.matches_paper
        and not UserModel.matches_paper
    )


class FixedService(ServiceModel):
    """Service with fixed values."""

    def __init__(self, there, takes, has_feedback):
        self.values = there, takes, has_feedback

    def available(self, drawn):
        return None if self.values[0] is None else jnp.asarray(self.values[0])

    def service_time(self, drawn, place, prompt, servers):
        return self.values[1]

    def feedback_arrives(self, drawn, place):
        return self.values[2]


class FixedReaction(UserModel):
    """Users with one fixed reaction."""

    def __init__(self, *reaction):
        self.reaction = Reaction(*reaction)

    def react(self, drawn, attempts):
        return self.reaction


def rules_of(users=(), service=()):
    return Dynamics(tuple(users), tuple(service), ((),) * len(users), ((),) * len(service), None)


def test_combined_service_models_intersect_availability_and_take_the_longest_attempt():
    t, place, servers = jnp.int32(1), jnp.int32(0), jnp.zeros(1, jnp.int32)
    both = rules_of(service=[
        FixedService([True, True, False], 2, True),
        FixedService([True, False, True], 5, False),
        FixedService(None, 3, None),
    ])  # fmt: skip
    assert both.combine("available", t).tolist() == [True, False, False]
    assert both.combine("service_time", t, place, place, servers) == 5
    assert not both.combine("feedback_arrives", t, place)
    none = rules_of(service=[ServiceModel(), ServiceModel()])
    assert none.combine("available", t) is None
    assert none.combine("feedback_arrives", t, place) is None
    assert none.combine("service_time", t, place, place, servers) is None
    assert not none.multi_round and rules_of(service=[ServiceModel(), ServiceTimes()]).multi_round


class FixedPrices(ServiceModel):
    """Service with fixed prices and a fixed delay."""

    def __init__(self, prices, delay):
        self.factors, self.delay = prices, delay

    def prices(self, drawn):
        return None if self.factors is None else jnp.asarray(self.factors)


def test_combined_service_models_multiply_prices_and_take_the_longest_delay():
    kinds = FixedPrices([1.0, 2.0, 3.0], 4), FixedPrices([2.0, 0.5, 4.0], 7), FixedPrices(None, 0)
    both = rules_of(service=kinds)
    assert both.combine("prices", jnp.int32(1)).tolist() == [2, 1, 12] and both.delay == 7
    assert rules_of(service=kinds[2:]).combine("prices", jnp.int32(1)) is None


def test_oracle_is_heuristic_unless_all_models_are_neutral():
    for service, ours in (
        ([LostFeedback(), DelayedFeedback()], False),
        ([LostFeedback(), Outages()], True),
    ):
        assert oracle_is_heuristic(with_dynamics(Coin(), [], service)) == ours
    assert oracle_is_heuristic(
        with_dynamics(Coin(), [Orbit()], [LostFeedback()])
    ) and not oracle_is_heuristic(Coin())


def test_combined_user_models_abandon_if_any_does_and_take_the_longest_return_delay():
    t, place, attempts = jnp.int32(1), jnp.int32(0), jnp.int32(1)

    def combine_reactions(*kinds):
        leaves, pretends, orbit_delays = rules_of(
            users=[FixedReaction(*one) for one in kinds]
        ).react(t, place, attempts)
        return bool(leaves), bool(pretends), int(orbit_delays)

    assert combine_reactions() == (False, False, 1)
    assert combine_reactions((False, True, 4), (True, False, 2)) == (True, False, 4), (
        "who stays pretends nothing"
    )
    assert combine_reactions((True, True, 1), (False, False, 9)) == (True, True, 9)


@pytest.mark.slow
def test_service_channels_set_the_problem_size_and_divide_the_rate():
    coin = Coin(classes=[0.2, 0.5])
    several = ArrivalWrapper(source=coin, process=BatchArrivals(sizes=[1, 1]))
    setting = with_dynamics(
        several, [PersistentUsers(), Orbit()], [SingleChannel(), ServiceChannels(count=2)]
    )
    assert isinstance(setting, Scenario) and len(setting.users) == len(setting.service) == 1
    assert setting.problem(1, 5).channels == 2
    assert with_dynamics(coin, [Orbit()], []).problem(1, 5).channels == 1
    served = coin.uniform_service(None, 0.3, 1)
    assert setting.uniform_service(None, 0.6, 1) == pytest.approx(2 * served)
    setting.check(np.arange(2), 1.5, 1)
    with pytest.raises(ValueError, match=r"arrival_rate=1.6 must be at most 1.5"):
        setting.check(np.arange(2), 1.6, 1)
    with pytest.raises(ValueError, match="return_rate=2 must be a number in"):
        with_dynamics(coin, [Orbit(return_rate=2)], []).check(np.arange(2), 0.3, 1)
    with pytest.raises(ValueError, match="count=0 must be"):
        with_dynamics(coin, [], [ServiceChannels(count=0)]).check(np.arange(2), 0.3, 1)
    made = with_dynamics(
        coin, [Impatience(patience=4), Impatience(patience=2), Orbit()], [LostFeedback()]
    )
    patience = made.draw_dynamics(KEY, made.problem(1, 5)).patience
    assert np.asarray(patience).tolist() == [[2]] * 5
    assert Scenario(source=coin).draw_dynamics(KEY, coin.problem(1, 5)) is None
    for users, service, message in (
        ([LostFeedback()], [], "users: LostFeedback must be a subclass of cqbjax.UserModel"),
        ([], [Orbit()], "service: Orbit must be a subclass of cqbjax.ServiceModel"),
        (
            [FixedReaction(False, False, 1)],
            [],
            "users: FixedReaction must be registered as a pytree",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            with_dynamics(coin, users, service)


class FixedUsers(Coin):
    """Coins whose contexts are the rate that the scenario is drawn for."""

    def draw_workload(self, key, arrival_rate, problem):
        drawn_workload = super().draw_workload(key, arrival_rate, problem)
        return drawn_workload._replace(
            contexts=jnp.broadcast_to(arrival_rate, drawn_workload.contexts.shape)
        )


def test_uniform_service_of_channels_uses_the_divided_rate(monkeypatch):
    monkeypatch.setattr(Coin, "uniform_service", lambda self, seeds, rate, size: rate + size)
    made = with_dynamics(Coin(), [], [ServiceChannels(count=3)])
    assert made.uniform_service(None, 0.6, 2) == pytest.approx(3 * (0.2 + 2))


@pytest.mark.parametrize("channels", cases([1, 3], [3]))
def test_workloads_are_drawn_at_the_divided_rate_and_arrive_at_the_full_rate(channels):
    source = with_dynamics(FixedUsers(), [Orbit()], [ServiceChannels(count=channels)])
    problem = source.problem(1, 40)
    draw = jax.jit(lambda rate: simulate.draw_instance(KEY, source, rate, problem))
    drawn = draw(jnp.float32(0.9))
    np.testing.assert_allclose(drawn.workload.contexts, 0.9 / channels, rtol=1e-6)
    assert np.asarray(drawn.arrivals).mean() > 0.6


class AgeingCoin(Coin):
    """Coins whose contexts grow while they wait, as those of a log do."""

    def problem(self, K, horizon):
        return super().problem(K, horizon)._replace(age_column=0)


def test_log_replays_reject_several_service_channels():
    with_dynamics(AgeingCoin(), [Orbit()], [LostFeedback()]).check(np.arange(2), 0.3, 1)
    with pytest.raises(ValueError, match="count must be 1 where a log is replayed"):
        with_dynamics(AgeingCoin(), [], [ServiceChannels(count=2)]).check(np.arange(2), 0.3, 1)


def test_every_model_draws_with_a_separate_key():
    made = with_dynamics(
        Coin(), [Orbit(), Orbit()], [LostFeedback(lost=0.5), LostFeedback(lost=0.5)]
    )
    drawn = made.draw_dynamics(KEY, made.problem(1, 60))
    (one, two), (three, four) = drawn.user_draws, drawn.service_draws
    assert (one != two).any() and (three != four).any()
    again = with_dynamics(Coin(), [Orbit()], []).draw_dynamics(KEY, made.problem(1, 60))
    np.testing.assert_array_equal(again.user_draws[0], one)
