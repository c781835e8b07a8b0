"""What compiles again: nothing, where a sweep differs in what is a number of a program."""

import dataclasses
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

import cqbjax
from cqbjax.core import queueing, rng
from cqbjax.core.pytree import pytree
from cqbjax.core.types import Action, Needs
from cqbjax.engine import batches, memory, programs
from cqbjax.engine.validation import build_spec
from cqbjax.policies import (
    Acqb,
    ContextWrapper,
    LinearBandit,
    OptimalPolicy,
    RandomRouting,
    ReplacedContexts,
)
from cqbjax.sources import Synthetic, rejection_sampling
from tests.reference.scenarios import unit_vectors

LOWERED = "/jax/core/compile/jaxpr_to_mlir_module_duration"
SOURCE = Synthetic(num_servers=3, dim=2)
POLICIES = {
    "acqb": Acqb(alpha_scale=0.2),
    "eps": Acqb(exploration="phased", explore_rounds=7, schedule="oldest"),
}
FIRST = {"arrival_rate": [0.4], "num_seeds": 3, "horizon": 60}
OTHERS = {
    "seeds": {"num_seeds": 5}, "far seeds": {"num_seeds": 4, "first_seed": 90},
    "rates": {"arrival_rate": [0.2, 0.5]},
    "horizon": {"horizon": 84}, "prime": {"horizon": 37}, "record_every": {"record_every": 12},
    "every round": {"record_every": 1, "horizon": 96},
}  # fmt: skip
TIMES = ["seconds_per_round", "compile_seconds"]


@pytest.fixture
def lowerings():
    """List what is lowered."""
    compilations = []

    def listen(event, seconds, **kwargs):
        if event == LOWERED:
            compilations.append(kwargs)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield compilations
    jax.monitoring.unregister_event_duration_listener(listen)


@pytest.mark.slow
def test_changed_seeds_rates_horizons_and_constants_do_not_recompile(lowerings, fresh_programs):
    cqbjax.sweep(POLICIES, SOURCE, **FIRST)
    assert lowerings, "the first one compiles"
    for what, keys in OTHERS.items():
        lowerings.clear()
        cqbjax.sweep(POLICIES, SOURCE, **FIRST | keys)
        assert not lowerings, what
    changed = {
        label: dataclasses.replace(one, c1=0.1, schedule="random")
        for label, one in POLICIES.items()
    }
    cqbjax.sweep(changed, Synthetic(num_servers=3, dim=2, slackness=0.1), **FIRST)
    assert not lowerings
    cqbjax.sweep(POLICIES, Synthetic(num_servers=3, dim=3), **FIRST)
    assert lowerings, "another d is another program"


@pytest.mark.slow
@pytest.mark.parametrize("source", [SOURCE, unit_vectors(3, 4)], ids=["synthetic", "pool"])
def test_padding_the_horizon_does_not_change_a_run(source, monkeypatch):
    """Draws of several parts and blocks, records of several calls, and the rates of a horizon."""
    monkeypatch.setattr(batches, "PADDED_HORIZONS", (4 * rejection_sampling.PART,))
    horizon = 2 * rejection_sampling.PART + rng.BLOCK + 1
    keys = {"arrival_rate": [0.4], "num_seeds": 2, "horizon": horizon, "record_every": 1}
    shapes, compiled = [], programs.compile_one
    monkeypatch.setattr(
        programs, "compile_one", lambda shape: shapes.append(shape) or compiled(shape)
    )
    more = cqbjax.sweep(POLICIES, source, **keys)
    assert {shape.shared_spec.problem.horizon for shape in shapes} == {4 * rejection_sampling.PART}
    monkeypatch.setattr(batches, "PADDED_HORIZONS", ())
    own = cqbjax.sweep(POLICIES, source, **keys)
    assert shapes[-1].shared_spec.problem.horizon == horizon
    xr.testing.assert_identical(more.drop_vars(TIMES), own.drop_vars(TIMES))
    explored = own.explored.sel(policy="eps").isel(arrival_rate=0)
    assert (explored.isel(round=-1) > explored.sel(round=7)).all(), "by the horizon's rate"


def plan(policy, source=SOURCE, horizon=60, record=(), seeds=3, size=1):
    one = build_spec({"it": policy}, source, [0.4], range(seeds), horizon, record=record, K=size)
    made = batches.plan_sweep([one], devices=jax.devices()[:1])
    group = next(group for group in made.batches if "it" in group.labels)
    return made, group


def test_only_sizes_independent_of_the_horizon_are_padded():
    made, group = plan(Acqb())
    padded = made.program_spec(group, 64).padded_problem
    assert padded.horizon == batches.PADDED_HORIZONS[0] == padded.num_rows
    assert made.program_spec(group, 64).width == memory.CPU_NARROW
    # Bins of times, a table of the run's rows, a source of one's own, a long run: of its own.
    view = ReplacedContexts(contexts=np.zeros((60, 2), np.float32))
    for policy, options in (
        (Acqb(), {"record": ["time_in_system"]}),
        (ContextWrapper(policy=Acqb(), view=view), {}),
        (Acqb(), {"horizon": batches.PADDED_HORIZONS[-1] + 1}),
    ):
        own, group = plan(policy, **options)
        assert own.program_spec(group, 64).padded_problem is None, policy
    tight = dataclasses.replace(made, bytes_per_device=40 * group.run_bytes(64))
    assert tight.program_spec(group, 64).padded_problem is None, "no more memory than is allowed"


def test_horizons_are_not_padded_on_a_gpu():
    made, group = plan(Acqb())
    card = type("Card", (), {"platform": "gpu"})()
    shape = dataclasses.replace(made, devices=(card,), chunk=2).program_spec(group, 64)
    assert shape.padded_problem is None and shape.shared_spec == shape and shape.every == 1


EMITTED = [
    (Acqb(), SOURCE, 1, False), (Acqb(schedule="oldest"), SOURCE, 2, False),
    (Acqb(), dataclasses.replace(SOURCE, parameters="shared"), 1, True),
    (Acqb(), unit_vectors(3, 4), 1, True), (LinearBandit(), SOURCE, 1, True),
    (OptimalPolicy(), SOURCE, 1, True), (RandomRouting(), SOURCE, 1, True),
]  # fmt: skip


@pytest.mark.parametrize(
    ("policy", "source", "size", "emitted"),
    [
        *(pytest.param(*one) for one in EMITTED[:1] + EMITTED[5:]),
        *(pytest.param(*one, marks=pytest.mark.slow) for one in EMITTED[1:5]),
    ],
)
def test_code_generator_is_chosen_by_policy_and_source_and_not_by_seeds(
    policy, source, size, emitted
):
    shapes = set()
    for seeds in (1, 2, 3, 70):
        made, group = plan(policy, source, seeds=seeds, size=size)
        shapes.add(made.program_spec(group, 64))
        shapes.add(dataclasses.replace(made, chunk=1).program_spec(group, 64))
    assert len({shape.width for shape in shapes}) > 1
    assert {programs._uses_emitters(shape) for shape in shapes} == {emitted}


MOST = 1


@pytree
class GlobalNumberPolicy:
    """Answers by a server that a module's global names."""

    needs = Needs(contexts=False)

    def init(self, problem, contexts):
        return ()

    def select(self, key, state, observation):
        slot = queueing.pick("oldest", observation.queue, rng.uniform(key, rng.Stream.QUERY))
        return Action(slot, jnp.int32([MOST]), jnp.bool_(False))

    def update(self, state, observation, action, feedback):
        return state


@pytest.mark.slow
def test_changed_globals_take_effect_after_clearing_the_program_cache(monkeypatch, fresh_programs):
    def answering():
        data = cqbjax.sweep({"it": GlobalNumberPolicy()}, SOURCE, **FIRST, record=["traffic"])
        traffic = data.traffic.sel(policy="it").isel(round=-1)
        return int(traffic.mean(["seed", "arrival_rate"]).argmax("llm"))

    assert answering() == 1
    monkeypatch.setattr(sys.modules[__name__], "MOST", 2)
    assert answering() == 1, "JAX's rule: what was traced runs, as docs/how_to/add_a_policy.md says"
    programs.clear_cache()
    assert answering() == 2
