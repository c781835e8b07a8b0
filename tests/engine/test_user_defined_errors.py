"""What a user's own part gets wrong most often: one sentence each, from Python and by command."""

import dataclasses
import re
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from composing import compose_config

import cqbjax
from cqbjax.cli._instantiate import make
from cqbjax.core import queueing
from cqbjax.core.contract import ContractError
from cqbjax.core.pytree import pytree
from cqbjax.core.recorders import Recorder
from cqbjax.core.scenario import PAPER_REACTION, ServiceModel, UserModel
from cqbjax.experiments import study_types
from cqbjax.policies import RandomRouting
from cqbjax.sources import Coin

RANDOM = RandomRouting()


@pytree
class SourceIf(Coin):
    def draw_workload(self, key, arrival_rate, problem):
        return super().draw_workload(key, arrival_rate if arrival_rate > 0.5 else 0.5, problem)


@pytree
class SourceMissing:
    problem, check, uniform_service = Coin.problem, Coin.check, Coin.uniform_service
    success: float = 0.5
    _classes, num_servers = 1, 2


class SourcePlain(Coin):
    pass


@pytree
class UsersIf(UserModel):
    def draw(self, key, problem):
        return jax.random.uniform(key, (problem.horizon, problem.channels))

    def react(self, drawn, attempts):
        return PAPER_REACTION if drawn < 0.5 else PAPER_REACTION._replace(abandons=drawn > 0.6)


@pytree
class UsersMissing(UserModel):
    def answer(self, drawn, attempts):
        return PAPER_REACTION


class UsersPlain(UsersIf):
    pass


@pytree
class ServiceIf(ServiceModel):
    def draw(self, key, problem):
        return jax.random.uniform(key, (problem.horizon, problem.num_servers))

    def available(self, drawn):
        return drawn > float(drawn[0])


@pytree
class ServiceMissing(ServiceModel):
    def availible(self, drawn):
        return drawn


class ServicePlain(ServiceIf):
    pass


@pytree
class PolicyIf(RandomRouting):
    def select(self, key, state, observation):
        return RANDOM.select(key, state, observation) if observation.round > 3 else None


@pytree
class PolicyMissing:
    init, select = RandomRouting.init, RandomRouting.select


class PolicyPlain(PolicyIf):
    pass


@pytree
class PolicyNumpyIf(RandomRouting):
    def select(self, key, state, observation):
        action = RANDOM.select(key, state, observation)
        return action._replace(slot=jnp.int32(np.random.default_rng().integers(1000)))


@pytree
class PolicyShapeIf(RandomRouting):
    def select(self, key, state, observation):
        action = RANDOM.select(key, state, observation)
        return action._replace(servers=jnp.zeros(2, jnp.int32))


@pytree
class PolicyWordIf(RandomRouting):
    def init(self, problem, contexts):
        return {"name": "mine"}


@pytree
class PolicyItemIf(RandomRouting):
    def update(self, state, observation, action, feedback):
        jnp.zeros(3)[0] = 1.0
        return state


@pytree
class PolicyAsarrayIf(RandomRouting):
    def select(self, key, state, observation):
        return RANDOM.select(key, state, observation)._replace(slot=np.asarray(observation.round))


@pytree
class PolicyIntIf(RandomRouting):
    def init(self, problem, contexts):
        return int("x")


@pytree
class PolicyPickIf(RandomRouting):
    def select(self, key, state, observation):
        return queueing.pick("oldst", observation.queue, 0.5)


@pytree
class PolicyStackIf(RandomRouting):
    def update(self, state, observation, action, feedback):
        return jnp.stack([])


@dataclasses.dataclass(frozen=True)
class RecorderIf(Recorder):
    name, label, unit = "often", "Often", ""

    def start(self, problem):
        return jnp.zeros(())

    def update(self, state, round_):
        if round_.valid:
            return state + 1
        return state


@dataclasses.dataclass(frozen=True)
class RecorderMissing(Recorder):
    name, label, unit = "often", "Often", ""

    def start(self, problem):
        return jnp.zeros(())


class RecorderPlain:
    name = "often"


OWN = {name: kind for name, kind in globals().items() if name.endswith(("If", "Missing", "Plain"))}
GROUPS = ("Source", "Users", "Service", "Policy", "Recorder")
AT = r"line \d+ of test_user_defined_errors\.py"
ASKS = (
    r"asks for the value of a traced array, in line \d+ of test_user_defined_errors\.py: "
    r"write jnp\.where "
)
MESSAGES = {
    "SourceIf": rf"source SourceIf: SourceIf\.draw_workload {ASKS}",
    "UsersIf": rf"users UsersIf: UsersIf\.react {ASKS}",
    "ServiceIf": rf"service ServiceIf: ServiceIf\.available {ASKS}",
    "PolicyIf": rf"policy mine: PolicyIf\.select {ASKS}",
    "PolicyNumpyIf": "policy mine: select and update must be pure, and the program of a round "
    rf".* \(PolicyNumpyIf\.select, {AT}\)",
    "PolicyAsarrayIf": rf"policy mine: PolicyAsarrayIf\.select {ASKS}",
    "PolicyIntIf": rf"policy mine: PolicyIntIf\.init raises ValueError, in {AT}: invalid literal",
    "PolicyPickIf": rf"policy mine: PolicyPickIf\.select raises ValueError, in {AT}: ",
    "PolicyShapeIf": r"policy mine: Action\.servers must be int32\[1\], and select returns "
    rf"int32\[2\] \(PolicyShapeIf\.select, {AT}\)",
    "PolicyWordIf": "policy mine: init must return arrays only, and it returns a str "
    rf"\(PolicyWordIf\.init, {AT}\)",
    "PolicyItemIf": rf"policy mine: PolicyItemIf\.update raises TypeError, in {AT}: ",
    "PolicyStackIf": rf"policy mine: PolicyStackIf\.update raises ValueError, in {AT}: ",
    "RecorderIf": rf"record: RecorderIf\.update {ASKS}",
    "SourceMissing": "source: SourceMissing lacks the method draw_workload, one of problem, ",
    "UsersMissing": "users: UsersMissing must override at least one of react, ",
    "ServiceMissing": "service: ServiceMissing must override at least one of ",
    "PolicyMissing": "policy mine: PolicyMissing lacks the method update, one of init, select, ",
    "RecorderMissing": "Can't instantiate abstract class RecorderMissing .*update",
    "SourcePlain": "source: SourcePlain must be registered as a pytree: decorate it with ",
    "UsersPlain": "users: UsersPlain must be registered as a pytree: decorate it with ",
    "ServicePlain": "service: ServicePlain must be registered as a pytree: decorate it with ",
    "PolicyPlain": "policy mine: PolicyPlain must be registered as a pytree: decorate it with ",
    "RecorderPlain": "recorder RecorderPlain must be a frozen dataclass made from core.recorders",
}


def sweep_with(group, part):
    policies = {"mine": part if group == "Policy" else RANDOM}
    keyword = {"Users": "users", "Service": "service", "Recorder": "record"}
    more = {keyword[group]: [part]} if group in keyword else {}
    source = part if group == "Source" else Coin()
    cqbjax.sweep(policies, source, arrival_rate=[0.4], num_seeds=2, horizon=9, **more)


def refusal_of(error, call, *arguments):
    with pytest.raises(error) as refusal:
        call(*arguments)
    message = str(refusal.value)
    assert "\n" not in message and not re.search(r"[.!?]\s+[A-Z]", message), message
    return message


@pytest.mark.parametrize("name", MESSAGES)
def test_sweep_reports_errors_of_user_defined_components_in_one_sentence(name):
    group = next(one for one in GROUPS if name.startswith(one))
    message = refusal_of((ValueError, TypeError), lambda: sweep_with(group, OWN[name]()))
    assert re.match(MESSAGES[name], message), message


@pytest.mark.parametrize("group", GROUPS)
def test_passing_a_class_for_an_instance_is_reported(group):
    message = refusal_of(ContractError, sweep_with, group, OWN[f"{group}If"])
    assert message.endswith(f": {group}If is a class: give an instance of it, {group}If(...)")


def check_by_command(group, target):
    """Check a study's point with a part, as the command does."""
    key = {"Users": "users", "Service": "service", "Policy": "policy"}.get(group)
    words = [f"+{key}.mine={{_target_: {target}}}"] if key else []
    if group == "Policy":
        words.append("policy=[]")
    if group == "Recorder":
        words.append(f"record=[{{_target_: {target}}}]")
    if group == "Source":
        words += ["~source", f"+source={{_target_: {target}}}"]
    config = compose_config("name=own", "num_seeds=2", "horizon=12", *words)
    study_types.prepare_points(config, make)


@pytest.mark.slow
@pytest.mark.parametrize("name", MESSAGES)
def test_command_reports_errors_of_user_defined_components_in_one_sentence(name, monkeypatch):
    group = next(one for one in GROUPS if name.startswith(one))
    module = types.ModuleType("own_parts")
    vars(module).update(OWN)
    monkeypatch.setitem(sys.modules, "own_parts", module)
    message = refusal_of(ValueError, check_by_command, group, f"own_parts.{name}")
    start = r"own_parts\.RecorderMissing cannot be made: " if name == "RecorderMissing" else ""
    assert re.match(start + MESSAGES[name], message), message
