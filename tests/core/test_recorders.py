"""A recorder of one's own: what it leaves in a sweep's dataset, and what is refused."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from waiting import DepartureRounds, SumOfWaits

import cqbjax
from cqbjax.core.recorders import Departures, Recorder
from cqbjax.core.recorders.answers import TrafficShare
from cqbjax.core.types import Action
from cqbjax.engine import checkpoints, programs
from cqbjax.policies import RandomRouting
from tests.reference import scenarios

POOL = scenarios.routing(np.linspace(-1, 1, 15).reshape(5, 3))
RUN: Any = {"arrival_rate": [0.3, 0.8], "num_seeds": 3, "horizon": 40, "record_every": 4}
CHOSEN = {"fifo": RandomRouting(schedule="oldest"), "lifo": RandomRouting(schedule="newest")}


@dataclasses.dataclass(frozen=True)
class LongestQueue(Recorder):
    """The longest queue of a run."""

    name, label, unit, per = "longest", "Longest queue", "queries", "run"

    def start(self, problem):
        return jnp.zeros((), jnp.int32)

    def update(self, state, round_):
        return jnp.maximum(state, round_.length)


@dataclasses.dataclass(frozen=True)
class OfferCounts(Recorder):
    """How often each server was shown so far."""

    name, label, unit, dims = "shown", "Shown", "rounds", ("llm",)

    def start(self, problem):
        return jnp.zeros(problem.num_servers, jnp.int32)

    def update(self, state, round_):
        return state.at[round_.action.servers].add(round_.valid.astype(jnp.int32))


OWN = (SumOfWaits(), DepartureRounds(), LongestQueue(), OfferCounts())


@pytest.fixture(scope="module")
def data():
    return cqbjax.sweep(CHOSEN, POOL, record=OWN, **RUN)


def test_recorders_have_round_run_and_query_dimensions(data):
    run = ("policy", "arrival_rate", "seed")
    assert data.waited.dims == (*run, "round") and data.shown.dims == (*run, "round", "llm")
    assert data.left.dims == (*run, "query") and data.longest.dims == run
    assert data.sizes["query"] == 40 and data.sizes["round"] == 10
    assert data.llm.values.tolist() == ["LLM 0", "LLM 1", "LLM 2"], "they have no names here"
    assert data.waited.attrs == {
        "units": "rounds", "long_name": "Rounds waited", "better": "less"
    }  # fmt: skip
    assert "yardstick" not in data.attrs, "the paper's scenario has the paper's"
    # Three recorders and one of the four count the same departures, each in its own way.
    left = data.left.values
    last = data.isel(round=-1)
    np.testing.assert_array_equal((left > 0).sum(-1), last.departures)
    waited = np.where(left > 0, left - np.arange(1, 41), 0).sum(-1)
    np.testing.assert_array_equal(waited, last.waited)
    by_round = (left[..., None, :] <= data["round"].values[:, None]) & (left[..., None, :] > 0)
    np.testing.assert_array_equal(by_round.sum(-1), data.departures)
    assert (data.longest >= data.queue_length.max("round")).all() and data.longest.max() > 3
    assert (np.diff(data.shown.values, axis=-2) >= 0).all()
    # The last query out waits less than the first one out: what is recorded is the policy's own.
    assert (last.waited.sel(policy="fifo") != last.waited.sel(policy="lifo")).any()


@pytest.mark.slow
def test_default_arrays_do_not_depend_on_other_recorders(data):
    plain = cqbjax.sweep(CHOSEN, POOL, **RUN)
    for name in ("queue_length", "regret", "departures", "explored", "optimal_queue_length"):
        np.testing.assert_array_equal(data[name], plain[name])
        assert data[name].dtype == plain[name].dtype
    assert {"waited", "left", "longest", "shown"} == set(data.data_vars) - set(plain.data_vars)
    better = {name: plain[name].attrs["better"] for name in ("regret", "departures", "explored")}
    assert better == {"regret": "less", "departures": "more", "explored": ""}


@pytest.mark.slow
def test_repeated_runs_record_from_the_first_round():
    """Of a run that is repeated with more slots, nothing of the first attempt stays."""
    crowded: Any = {**RUN, "arrival_rate": [1.0], "horizon": 200, "record_every": 200}
    grown = cqbjax.sweep(CHOSEN, POOL, record=OWN, **crowded)
    at_once = cqbjax.sweep(CHOSEN, POOL, record=OWN, capacity=512, **crowded)
    for name in ("waited", "left", "longest", "shown"):
        np.testing.assert_array_equal(grown[name], at_once[name])


@pytest.mark.slow
def test_recorders_change_program_and_cache_key(tmp_path, data):
    keys = []
    for recorders in ((SumOfWaits(),), (SumOfWaits(scale=2.0),), (SumOfWaits(),)):
        again = cqbjax.sweep(CHOSEN, POOL, record=recorders, resume=tmp_path, **RUN)
        np.testing.assert_array_equal(again.waited, data.waited * recorders[0].scale)
        assert again.waited.dtype == np.float32
        keys.append(sorted(path.name for path in tmp_path.iterdir()))
    assert len(keys[1]) == 2 * len(keys[0]) and keys[2] == keys[1]


REFUSED = {
    "record=waited is unknown; choose from time_in_system": "waited",
    "recorder int must be a frozen dataclass": 3,
    "recorder Departures has the name departures, which is taken": Departures(),
    "recorder Gap has the name gap, which is taken": dataclasses.make_dataclass(
        "Gap", [], bases=(LongestQueue,), frozen=True, namespace={"name": "gap"}
    )(),
    r"recorder flat must read an array over dims=\['query'\], and reads one of shape \[\]": (
        dataclasses.make_dataclass(
            "Flat", [], bases=(LongestQueue,), frozen=True,
            namespace={"name": "flat", "dims": ("query",)},
        )()
    ),
    "recorder turns must keep its state's shapes and types in update": dataclasses.make_dataclass(
        "Turns", [], bases=(LongestQueue,), frozen=True,
        namespace={"name": "turns", "update": lambda self, state, round_: state * 1.0},
    )(),
    "recorder few reads 3 along query, and another one 40": dataclasses.make_dataclass(
        "Few", [], bases=(OfferCounts,), frozen=True, namespace={"name": "few", "dims": ("query",)}
    )(),
}  # fmt: skip


@pytest.mark.parametrize("message", REFUSED)
def test_invalid_recorders_are_rejected_in_one_sentence(message, monkeypatch, fresh_programs):
    monkeypatch.setattr(programs, "_map_over_runs", None)
    with pytest.raises(ValueError, match=message):
        cqbjax.sweep(CHOSEN, POOL, record=[DepartureRounds(), REFUSED[message]], **RUN)


def test_two_recorders_of_one_name_are_refused():
    with pytest.raises(ValueError, match="recorder SumOfWaits has the name waited, which is taken"):
        cqbjax.sweep(CHOSEN, POOL, record=[SumOfWaits(), SumOfWaits(scale=2.0)], **RUN)


def test_recorder_modules_are_hashed():
    assert checkpoints.hash_code(SumOfWaits()) != checkpoints.hash_code()


@pytest.mark.parametrize("valid", [True, False])
def test_traffic_counts_every_offered_server(valid):
    """Of one place servers are [K], of several [c, K]; nobody is shown to an empty queue."""
    recorder = TrafficShare()
    for servers, expected in (([0, 2], [1, 0, 1]), ([[0, 2], [1, 2]], [1, 1, 2])):
        valids = np.full(np.shape(servers)[:-1], valid)
        action = Action(jnp.int32(0), jnp.asarray(servers), jnp.bool_(False))
        shown = recorder.update(
            jnp.zeros(3, jnp.int32), SimpleNamespace(action=action, valid=valids)
        )
        assert shown.tolist() == [one * valid for one in expected]
