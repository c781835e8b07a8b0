"""The contract of kinds of users and of service: ours keep it, planted faults are found."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiers import cases

import cqbjax
from cqbjax import dynamics
from cqbjax.core.pytree import pytree, static
from cqbjax.core.scenario import PAPER_REACTION, ServiceModel, UserModel
from cqbjax.dynamics._template import BacksOff
from cqbjax.policies import RandomRouting
from cqbjax.sources import Coin
from cqbjax.testing import PROBLEM, ContractError, check_service, check_users

BILLED = PROBLEM._replace(has_costs=True)
KINDS = {
    "orbit": dynamics.Orbit(return_rate=0.3),
    "delays": dynamics.Orbit(delays=[1, 4, 9]),
    "impatient": dynamics.Impatience(attempts=3, give_up=0.1, leave=0.1, pretends=0.5),
    "template": BacksOff(),
    "count": dynamics.ServiceChannels(count=3),
    "rounds": dynamics.ServiceTimes(rounds=[1, 2, 3, 4]),
    "geometric": dynamics.ServiceTimes(rounds=2.5, law="geometric"),
    "table": dynamics.ServiceTimes(rounds=1 + np.arange(48.0).reshape(12, 4) % 3),
    "outages": dynamics.Outages(share=0.2, length=5, since=[1, 9, 1, 1]),
    "lost": dynamics.LostFeedback(),
    "late": dynamics.DelayedFeedback(delay=3),
    "prices": dynamics.Prices(spread=0.2, factors=[1, 2, 3, 4]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_user_and_service_models_keep_the_contract(name):
    kind = KINDS[name]
    check = check_users if isinstance(kind, UserModel) else check_service
    check(kind, BILLED)


CALLS = itertools.count()


@pytree
class ChangedUsers(UserModel):
    """Users with one part exchanged."""

    made: Any = static(default=lambda drawn: drawn)
    reaction: Any = static(default=lambda messages, drawn: messages)
    patience: Any = static(default=lambda problem: None)

    def draw(self, key, problem):
        return self.made(jax.random.uniform(key, (problem.horizon, problem.channels)))

    def draw_patience(self, key, problem):
        return self.patience(problem)

    def react(self, drawn, attempts):
        return self.reaction(PAPER_REACTION._replace(abandons=drawn < 0.1), drawn)


@pytree
class Shop(ServiceModel):
    """A service with one part exchanged."""

    made: Any = static(default=lambda drawn: drawn)
    up: Any = static(default=lambda drawn: drawn > 0.1)
    time: Any = static(default=lambda servers: jnp.max(servers) + 1)
    feedback: Any = static(default=lambda drawn: drawn[0] > 0.5)
    price: Any = static(default=lambda drawn: 1 + drawn)
    many: Any = static(default=1)
    late: Any = static(default=0)
    multi_round: Any = static(default=True)

    @property
    def channels(self):
        return self.many

    @property
    def delay(self):
        return self.late

    def draw(self, key, problem):
        return self.made(jax.random.uniform(key, (problem.horizon, problem.num_servers)))

    def available(self, drawn):
        return self.up(drawn)

    def service_time(self, drawn, place, prompt, servers):
        return self.time(servers)

    def feedback_arrives(self, drawn, place):
        return self.feedback(drawn)

    def prices(self, drawn):
        return self.price(drawn)


def draw_outside(drawn):
    return drawn + np.random.default_rng().uniform()


FAULTS = {
    "ChangedUsers: draw must return arrays [T, c, ...], for each round and channel, here [48, 1], "
    "and returns float32[47, 1]": ChangedUsers(made=lambda drawn: drawn[1:]),
    "ChangedUsers: react must return a Reaction, and it returns tuple":
        ChangedUsers(reaction=lambda s, d: tuple(s)),
    "ChangedUsers: Reaction.abandons must be bool[], and react returns float32[]":
        ChangedUsers(reaction=lambda s, d: s._replace(abandons=d)),
    "ChangedUsers: Reaction.return_delay must be int32[], and react returns float32[]":
        ChangedUsers(reaction=lambda s, d: s._replace(return_delay=3 * d)),
    "ChangedUsers: draw_patience must return int32[48, 1] or None, and it returns int32[48]":
        ChangedUsers(patience=lambda problem: jnp.ones(problem.horizon, jnp.int32)),
    "ChangedUsers: draw_patience must return at least 1 round":
        ChangedUsers(patience=lambda problem: jnp.zeros((problem.horizon, 1), jnp.int32)),
    "ChangedUsers: draw must return numbers, and some are NaN":
        ChangedUsers(made=lambda drawn: drawn.at[7].set(jnp.nan)),
    "ChangedUsers: react must return a return_delay of at least 1 round":
        ChangedUsers(reaction=lambda s, d: s._replace(return_delay=jnp.int32(8 * d))),
    "ChangedUsers: the same key must give the same draws": ChangedUsers(made=draw_outside),
    "ChangedUsers: the first rounds must be the same at any horizon":
        ChangedUsers(made=lambda drawn: drawn[::-1]),
    "ChangedUsers: react must be pure":
        ChangedUsers(reaction=lambda s, d: s._replace(return_delay=jnp.int32(1 + next(CALLS) % 2))),
    "Shop: draw must return arrays [T, ...]": Shop(made=lambda drawn: drawn[1:]),
    "Shop: available must return bool[4] or None, and it returns float32[4]": Shop(up=lambda d: d),
    "Shop: available must return bool[4] or None, and it returns bool[3]":
        Shop(up=lambda d: d[1:] > 0),
    "Shop: service_time must return int32[] or None, and it returns float32[]":
        Shop(time=lambda servers: jnp.mean(servers)),
    "Shop: a model with a method service_time needs multi_round = True": Shop(multi_round=False),
    "Shop: service_time must return at least 1 round": Shop(time=lambda servers: jnp.min(servers)),
    "Shop: feedback_arrives must return bool[] or None, and it returns bool[4]":
        Shop(feedback=lambda d: d > 0),
    "Shop: prices must return float32[4] or None, and it returns float32[]":
        Shop(price=lambda d: d[0]),
    "Shop: prices must be finite and not negative": Shop(price=lambda d: d - 0.5),
    "Shop: draw must return numbers, and some are NaN":
        Shop(made=lambda d: d.at[3, 1].set(jnp.nan)),
    "Shop.channels must be a whole number, at least 1, and it is 2.0": Shop(many=2.0),
    "Shop.delay must be a whole number, at least 0, and it is -1": Shop(late=-1),
    "Shop: the same key must give the same draws": Shop(made=draw_outside),
    "Shop: available must be pure": Shop(up=lambda d: d > 0.1 * (next(CALLS) % 2)),
}  # fmt: skip
PARTS = "draw must return arrays", "return_delay must be", "needs multi_round"
QUICK = [name for name in FAULTS if any(part in name for part in PARTS)]


def refusal(call, *arguments, **more):
    with pytest.raises(ContractError) as refused:
        call(*arguments, **more)
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize("message", cases(FAULTS, QUICK))
def test_a_planted_fault_is_found(message):
    kind = FAULTS[message]
    messages = refusal(check_users if isinstance(kind, UserModel) else check_service, kind)
    assert messages.startswith(message)


@pytest.mark.slow
def test_fault_free_component_passes_the_contract():
    check_users(ChangedUsers())
    check_service(Shop(many=3, late=2))


# What only a second draw, another horizon or a second trace shows is left to the checks.
IN_A_SWEEP = [name for name in FAULTS if "any horizon" not in name and "pure" not in name
              and "same key" not in name]  # fmt: skip
QUICK_SWEEP = [name for name in IN_A_SWEEP if "bool[3]" in name]


@pytest.mark.parametrize("message", cases(IN_A_SWEEP, QUICK_SWEEP))
def test_sweep_rejects_faulty_shapes_and_draws_of_models(message):
    kind, more = FAULTS[message], {"horizon": 48, "seeds": [4, 9], "K": 2}
    group = "users" if isinstance(kind, UserModel) else "service"
    messages = refusal(
        cqbjax.sweep, {"random": RandomRouting()}, Coin(num_servers=4), arrival_rate=[0.4],
        **{group: [kind]}, **more,
    )  # fmt: skip
    head = f"{group}: {message}" if message.startswith("Shop.") else f"{group} {message}"
    assert messages.startswith(head), messages
    drawn = any(word in messages for word in ("NaN", "at least 1 round", "finite and"))
    assert messages.endswith("those of seed 4, arrival_rate 0.4 do not") == drawn


def test_objects_that_are_not_models_are_rejected():
    class Undecorated(UserModel):
        def react(self, drawn, attempts):
            return PAPER_REACTION

    @pytree
    class UsersWithoutReact(UserModel):
        def answer(self, drawn, attempts):
            return PAPER_REACTION

    @pytree
    class PlainClass:
        pass

    messages = {
        "Undecorated must be registered as a pytree: decorate it with core.pytree.pytree": (
            Undecorated()
        ),
        "UsersWithoutReact must override at least one of react, draw_patience": UsersWithoutReact(),
        "PlainClass must be a subclass of cqbjax.UserModel": PlainClass(),
        "Shop must be a subclass of cqbjax.UserModel": Shop(),
        "ChangedUsers is a class: give an instance of it, ChangedUsers(...)": ChangedUsers,
    }
    for message, kind in messages.items():
        assert refusal(check_users, kind) == message
        plays = {"arrival_rate": [0.4], "num_seeds": 2, "horizon": 8, "users": [kind]}
        assert refusal(cqbjax.sweep, {}, Coin(), **plays) == f"users: {message}"
    assert "service: must be a list" in refusal(cqbjax.sweep, {}, Coin(), arrival_rate=[0.4],
                                                num_seeds=2, horizon=8, service=Shop())  # fmt: skip
