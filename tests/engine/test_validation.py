"""Wrong input to a sweep: one sentence that names the key, before anything compiles."""

import re

import jax.numpy as jnp
import numpy as np
import pytest

import cqbjax
from cqbjax import QueueOverflow
from cqbjax.dynamics import DelayedFeedback
from cqbjax.engine import programs, spec
from cqbjax.policies import Acqb, OptimalPolicy, QueueingBandit, RandomRouting, RouterPolicy
from cqbjax.sources import PromptPool, Synthetic
from tests.reference import scenarios

RANDOM = {"random": RandomRouting()}
SOURCE = Synthetic(num_servers=3, dim=2, slackness=0.0)
GOOD = {"arrival_rate": [0.4], "num_seeds": 2, "horizon": 16}
NAN = float("nan")
SCORES = np.ones((4, 3))


def table(contexts=(4, 2), utilities=(4, 3), pool_size=4, poison=None):
    values = {"contexts": np.ones(contexts), "utilities": np.ones(utilities)}
    if poison is not None:
        name, value = poison
        values[name][1, 1] = value
    return PromptPool(pool_size=pool_size, **{k: jnp.asarray(v, float) for k, v in values.items()})


# case: (source, policies, changed arguments of the sweep, words of the one sentence)
CASES = {
    "K > N": (SOURCE, RANDOM, {"K": 4}, ["K=4", "1..N", "N=3"]),
    "K < 1": (SOURCE, RANDOM, {"K": 0}, ["K=0", "1..N"]),
    "negative K": (SOURCE, RANDOM, {"K": -1}, ["K=-1", "1..N"]),
    "negative rate": (
        SOURCE, RANDOM, {"arrival_rate": [0.4, -0.1]}, ["arrival_rate=-0.1", "[0, 1]"],
    ),
    "rate > 1": (SOURCE, RANDOM, {"arrival_rate": [1.2]}, ["arrival_rate=1.2", "[0, 1]"]),
    "rate is no number": (SOURCE, RANDOM, {"arrival_rate": [NAN]}, ["arrival_rate=nan", "[0, 1]"]),
    "no rounds": (SOURCE, RANDOM, {"horizon": 0}, ["horizon=0", "at least 1"]),
    "no seeds": (SOURCE, RANDOM, {"num_seeds": 0}, ["num_seeds", "at least 1"]),
    "empty seeds": (
        SOURCE, RANDOM, {"num_seeds": None, "seeds": []}, ["num_seeds", "at least 1"],
    ),
    "a seed twice": (
        SOURCE, RANDOM, {"num_seeds": None, "seeds": [3, 5, 3]}, ["seeds", "distinct"],
    ),
    "negative seed": (
        SOURCE, RANDOM, {"num_seeds": None, "seeds": [-1, 0]}, ["seeds", "not negative"],
    ),
    "no policies": (SOURCE, {}, {}, ["policies", "at least one"]),
    "no slots": (SOURCE, RANDOM, {"capacity": 0}, ["capacity=0", "auto", "at least 1"]),
    "records": (SOURCE, RANDOM, {"record_every": 5}, ["record_every=5", "divide horizon=16"]),
    "records of nothing": (SOURCE, RANDOM, {"record_every": 0}, ["record_every=0", "divide"]),
    "slackness + rate >= 1": (
        Synthetic(slackness=0.6), RANDOM, {}, ["slackness=0.6", "arrival_rate=0.4", "below 1"],
    ),
    "negative slackness": (
        Synthetic(slackness=-0.01), RANDOM, {}, ["slackness=-0.01", "in [0, inf)"]
    ),
    "negative infinite slackness": (
        Synthetic(slackness=-float("inf")), RANDOM, {}, ["slackness=-inf", "in [0, inf)"]
    ),
    "slackness is no number": (
        Synthetic(slackness=NAN), RANDOM, {}, ["slackness=nan", "in [0, inf)"]
    ),
    "slackness that no context meets": (
        Synthetic(num_servers=1, dim=1, slackness=0.3), RANDOM, {"arrival_rate": [0.6]},
        ["slackness=0.3", "arrival_rate=0.6", "seed", "lower arrival_rate"],
    ),
    "q_ucb with pairs": (
        SOURCE, {"q_ucb": QueueingBandit()}, {"K": 2}, ["q_ucb", "K=1", "K=2"],
    ),
    "q_ucb with pairs, behind another": (
        SOURCE, {**RANDOM, "q_ucb": QueueingBandit()}, {"K": 2},
        ["q_ucb", "K=1", "K=2"],
    ),
    "a pool beyond the table": (table(pool_size=5), RANDOM, {}, ["pool_size=5", "in [1, 4]"]),
    "an empty pool": (table(pool_size=0), RANDOM, {}, ["pool_size=0", "in [1, 4]"]),
    "NaN utility": (table(poison=("utilities", NAN)), RANDOM, {}, ["utilities", "finite"]),
    "infinite utility": (table(poison=("utilities", np.inf)), RANDOM, {}, ["utilities", "finite"]),
    "NaN embedding": (table(poison=("contexts", NAN)), RANDOM, {}, ["contexts", "finite"]),
    "rows differ": (table(contexts=(3, 2), pool_size=3), RANDOM, {}, ["4 prompts", "3 embeddings"]),
    "no rates": (SOURCE, RANDOM, {"arrival_rate": []}, ["arrival_rate", "at least one"]),
    "a rate twice": (SOURCE, RANDOM, {"arrival_rate": [0.4, 0.4]}, ["arrival_rate", "distinct"]),
    "seeds that are no integers": (
        SOURCE, RANDOM, {"num_seeds": None, "seeds": [0.5, 1.5]}, ["seeds", "integer"],
    ),
    "seeds beyond 32 bits": (
        SOURCE, RANDOM, {"num_seeds": None, "seeds": [2**40, 2**41]}, ["seeds", "2^31"],
    ),
    "a word for a capacity": (SOURCE, RANDOM, {"capacity": "many"}, ["capacity=many", "auto"]),
    "half a slot": (SOURCE, RANDOM, {"capacity": 2.5}, ["capacity=2.5", "auto", "whole number"]),
    "a negative chunk": (SOURCE, RANDOM, {"chunk": -1}, ["chunk=-1", "at least 1"]),
    "no memory": (SOURCE, RANDOM, {"memory_gb": 0}, ["memory_gb=0", "above 0"]),
    "too little memory": (SOURCE, RANDOM, {"memory_gb": 1e-7}, ["memory_gb must allow", "GB"]),
    "no dimensions": (Synthetic(dim=0), RANDOM, {}, ["dim=0", "in [1, "]),
    "a word for a radius": (
        SOURCE, {"acqb": Acqb(alpha_scale="abc")}, {}, ["alpha_scale=abc", "number in [0, inf)"],
    ),
    "no regularisation": (SOURCE, {"acqb": Acqb(lambda0=0.0)}, {}, ["lambda0=0", "(0, inf)"]),
    "too little of it": (SOURCE, {"acqb": Acqb(lambda0=0.1)}, {}, ["lambda0=0.1", "at least 0.3"]),
    "a radius that is no number": (
        SOURCE, {"acqb": Acqb(alpha_scale=NAN)}, {}, ["alpha_scale=nan", "[0, inf)"],
    ),
    "odd window": (SOURCE, {"acqb": Acqb(window=7)}, {}, ["window=7", "even number", "null"]),
    "a number beyond float32": (SOURCE, {"acqb": Acqb(kappa=1e39)}, {}, ["kappa=1e+39", "float32"]),
    "too many samples": (
        SOURCE, {"acqb": Acqb(num_samples=100_000)}, {}, ["num_samples=100000 takes", "at most"],
    ),
    "more rounds than numbers": (SOURCE, RANDOM, {"horizon": 2**31 - 1}, ["horizon=", "2^30"]),
    "more seeds than fit": (SOURCE, RANDOM, {"num_seeds": 2**31}, ["what is recorded takes", "GB"]),
    "feedback after the end": (
        SOURCE, RANDOM, {"service": [DelayedFeedback(delay=10**8)]},
        ["delay=100000000", "horizon="],
    ),
    "no samples": (SOURCE, {"acqb": Acqb(num_samples=0)}, {}, ["num_samples=0", "at least 1"]),
    "NaN scores": (table(), {"knn": RouterPolicy(scores=SCORES * NAN)}, {}, ["scores", "finite"]),
    "scores for other prompts": (
        table(), {"knn": RouterPolicy(scores=SCORES[:2])}, {}, ["scores", "2", "4 prompts"],
    ),
    "scores for other servers": (
        table(), {"knn": RouterPolicy(scores=SCORES[:, :2])}, {}, ["scores", "2", "3 servers"],
    ),
}  # fmt: skip


@pytest.fixture
def nothing_compiles(monkeypatch, fresh_programs):
    """Fail the moment that a sweep compiles or runs a program."""

    def refuse(*args, **kwargs):
        raise AssertionError("a program was compiled before the input was refused")

    monkeypatch.setattr(programs, "_map_over_runs", refuse)


@pytest.mark.parametrize("case", CASES)
def test_invalid_arguments_of_sweep_are_rejected_in_one_sentence(case, nothing_compiles):
    source, policies, changed, words = CASES[case]
    with pytest.raises(ValueError) as refusal:
        cqbjax.sweep(policies, source, **{**GOOD, **changed})
    message = str(refusal.value)
    assert all(word in message for word in words), message
    assert "\n" not in message and not re.search(r"[.!?]\s+[A-Z]", message), "two sentences"


@pytest.mark.slow
def test_valid_arguments_of_sweep_reach_compilation(nothing_compiles):
    with pytest.raises(AssertionError, match="a program was compiled"):
        cqbjax.sweep(RANDOM, SOURCE, **GOOD)


def test_rate_without_any_feasible_slackness_is_rejected():
    with pytest.raises(ValueError, match=r"seed \d+ .*; lower arrival_rate") as refusal:
        Synthetic(num_servers=1, dim=1, slackness=0.0).check(np.arange(8), 0.7, 1)
    assert "stay below" not in str(refusal.value)
    Synthetic(num_servers=1, dim=1, slackness=0.0).check(np.arange(8), 0.3, 1)


def test_slackness_bound_in_the_message_is_exact():
    """The number in the sentence is the border: a little less is accepted, a little more is not."""
    seeds = np.arange(4)
    with pytest.raises(ValueError) as refusal:
        Synthetic(num_servers=2, dim=2, slackness=0.39).check(seeds, 0.6, 1)
    border = float(re.search(r"stay below (-?[\d.]+)", str(refusal.value))[1])
    Synthetic(num_servers=2, dim=2, slackness=border - 0.03).check(seeds, 0.6, 1)
    with pytest.raises(ValueError):
        Synthetic(num_servers=2, dim=2, slackness=border + 0.002).check(seeds, 0.6, 1)


@pytest.mark.slow
def test_overflow_message_names_round_and_run():
    """One slot fewer than the longest queue overflows again, and so many do not."""
    source, policies = scenarios.constant(0.5), {"optimal": OptimalPolicy()}
    keys = {"arrival_rate": [0.1, 0.7], "seeds": [2, 8], "horizon": 40, "record_every": 1}
    with pytest.raises(QueueOverflow) as overflow:
        cqbjax.sweep(policies, source, capacity=3, **keys)
    message = str(overflow.value)
    named = re.search(
        r"capacity=3 overflowed in round (\d+) of policy (\w+), seed (\d+), "
        r"arrival_rate ([\d.]+); raise it, or use capacity=auto",
        message,
    )
    assert named, message
    round_, free = int(named[1]), cqbjax.sweep(policies, source, **keys)
    enough = int(free.queue_length.max())
    large = cqbjax.sweep(policies, source, capacity=enough, **keys)
    with pytest.raises(QueueOverflow, match=f"capacity={enough - 1} overflowed"):
        cqbjax.sweep(policies, source, capacity=enough - 1, **keys)
    run = large.sel(policy=named[2], seed=int(named[3]), arrival_rate=float(named[4]))
    lengths = run.queue_length.values
    assert lengths[: round_ - 1].max() == 3 and lengths[round_ - 1] == 4, "the first lost query"
    assert enough == large.queue_length.max() > 5


def test_record_every_divides_the_horizon():
    for horizon in (1, 7, 250, 251, 500, 1000, 5000):
        records = spec.choose_records(horizon)
        assert records.rounds[-1] == horizon == records.every * records.per_call * records.calls
        assert len(records.rounds) <= max(spec.MAX_RECORDS, horizon if records.every == 1 else 0)
    assert spec.choose_records(12, 4).rounds.tolist() == [4, 8, 12]


def test_an_unknown_estimator_combination_is_refused():
    source = Synthetic(num_servers=3, dim=2, slackness=0.0, parameters="shared")
    with pytest.raises(ValueError, match=r"estimator=newton_cg needs parameters=disjoint"):
        cqbjax.sweep({"acqb": Acqb(estimator="newton_cg")}, source, **GOOD)
