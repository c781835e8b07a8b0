"""Arguments of a sweep of another type than asked for: one sentence that names them."""

import math

import jax
import numpy as np
import pytest
from scipy.special import expit
from tiers import cases

import cqbjax
from cqbjax.core import inputs
from cqbjax.core.rng import MAX_SEED
from cqbjax.engine import memory, programs, spec, validation
from cqbjax.policies import Acqb, RandomRouting
from cqbjax.sources import PromptPool, Synthetic

RANDOM = {"random": RandomRouting()}
SOURCE = Synthetic(num_servers=3, dim=2, slackness=0.0)
GOOD = {"policies": RANDOM, "source": SOURCE, "arrival_rate": [0.4], "num_seeds": 2, "horizon": 16}
ROWS = {"utilities": [[1.0, 2.0]] * 4, "pool_size": 4}
# argument: (wrong values, what is said of each)
WRONG = {
    "policies": ([[RandomRouting()], "random", RandomRouting(), None], "policies must map a label"),
    "policies ": ([{one: RandomRouting()} for one in (1, None, "", " ", "a\nb")], "must be a word"),
    "policies  ": ([{"a": RandomRouting}], "policy a: RandomRouting is a class: give an instance"),
    "source": ([Synthetic], "source: Synthetic is a class: give an instance"),
    "source ": ([Synthetic(num_servers=n) for n in (2.5, "3", True, 0)], "num_servers=.* must be"),
    "source  ": ([Synthetic(slackness=one) for one in ("0.1", [0.1], None, True)], "slackness="),
    "source   ": ([PromptPool(contexts=[1.0, 2.0], **ROWS)],
                  "contexts .* must have a row a prompt"),
    "source    ": ([PromptPool(contexts=[[1e30, 0.0]] * 4, **ROWS)], "row 0 has length 1e"),
    "arrival_rate": (
        [0.4, np.float64(0.4), [[0.4]], "0.4", ["0.4"], None, [True]], "arrival_rate=.* a list of",
    ),
    "arrival_rate ": ([[0.3, 0.1 + 0.2], [0.3, 0.3]], "to 12 digits two are the same"),
    "seeds": ([[True], "2", [[1, 2]], {1, 2}, 2.0, True], "seeds=.* must be integers"),
    "seeds ": ([range(3, 10**10)], "seeds must be below 2"),
    "seeds  ": ([2, np.int64(2)], "seeds=2 must be a list: write num_seeds=2"),
    "num_seeds": ([True, [1], 2.0, "2", None], "num_seeds=.* must be whole numbers"),
    "num_seeds ": ([10**12], "seeds must be below 2"),
    "first_seed": ([True, 0.5, "1", None], "first_seed=.* must be whole numbers"),
    "horizon": ([40.0, "40", True, 0, 2**31], "horizon=.* must be a whole number"),
    "K": ([1.0, True, "1", [1]], "K=.* must be a whole number"),
    "record_every": ([2.0, "2", True], "record_every=.* must divide"),
    "capacity": ([True, None, 0, 2**31, "64"], "capacity=.* must be `auto` or a whole number"),
    "chunk": ([2.5, "2", True, 0], "chunk=.* must be a whole number"),
    "memory_gb": (["2", float("nan"), True], "memory_gb=.* must be a number above 0"),
    "devices": ([[], "cpu", ["cpu"], 1, jax.devices()[0]], "devices=.* must be a list of devices"),
    "progress": ([3, "yes"], "progress=.* must be True, False"),
    "resume": ([3, True], "resume=.* must be a folder"),
    "record": (["attempts", None], "record=.* must be a list"),
    "queries": (["no", 1], "queries=.* must be True or False"),
}  # fmt: skip
CASES = [(key, value, message) for key, (values, message) in WRONG.items() for value in values]


@pytest.mark.parametrize(("key", "value", "message"), CASES)
def test_arguments_of_wrong_type_are_rejected_in_one_sentence(key, value, message, monkeypatch):
    monkeypatch.setattr(programs, "_map_over_runs", None)  # nothing compiles
    arguments = {**GOOD, key.strip(): value}
    if key.strip() == "seeds":
        del arguments["num_seeds"]
    with pytest.raises(ValueError, match=message) as refusal:
        cqbjax.sweep(**arguments)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("old", "new"), [("arrival_rates", "arrival_rate"), ("assortment_size", "K")]
)
def test_an_argument_that_was_renamed_is_an_error_with_its_new_name(old, new):
    with pytest.raises(TypeError, match=rf"^sweep: {old} is now {new}, as on the command line$"):
        cqbjax.sweep(**GOOD, **{old: [0.4]})


def test_seeds_are_a_count_with_a_first_seed_or_a_list():
    assert validation.choose_seeds(3, 0, None) == range(3)
    assert validation.choose_seeds(np.int64(2), 5, None) == range(5, 7)
    assert validation.choose_seeds(None, 0, [5, 2]) == [5, 2]
    for num_seeds, first_seed in ((2, 0), (None, 3)):
        with pytest.raises(ValueError, match="without num_seeds and first_seed"):
            validation.choose_seeds(num_seeds, first_seed, [1])


def test_smallest_and_largest_allowed_arguments_are_accepted():
    for number in (1, MAX_SEED - 1):
        validation._check_runs(min(number, validation.MAX_ROUNDS), number)
        memory.check_chunks(number, 1e-9)
    validation.check_seeds(np.array([0, MAX_SEED - 1]))
    validation.check_seeds(range(MAX_SEED - 2, MAX_SEED))
    validation.check_rates([0.0, 3.0], 3)
    for size in (1, 3):
        validation.check_assortments(3, size)


def test_numpy_scalars_are_numbers_and_booleans_are_not():
    assert all(map(inputs.is_integer, (1, np.int64(1), np.int32(1))))
    assert not any(map(inputs.is_integer, (True, np.bool_(True), 1.0, "1", None, [1])))
    assert all(map(inputs.is_number, (1, 0.5, np.float32(1), np.array(0.5), jax.numpy.ones(()))))
    assert not any(map(inputs.is_number, (True, np.array(True), "1", None, [1.0], np.ones(1))))


def test_sweeps_beyond_the_memory_are_rejected_before_drawing_candidates(monkeypatch):
    """Whether arrays of many seeds, or a run of many servers."""
    monkeypatch.setattr(Synthetic, "_draw_utilities", None)
    monkeypatch.setattr(memory, "machine_memory", lambda: 10**8)
    with pytest.raises(ValueError, match="what is recorded takes 0.256 GB, and .* has 0.1: lower"):
        cqbjax.sweep(**{**GOOD, "num_seeds": 10**6})
    large = {
        "source": Synthetic(num_servers=10**5, dim=100),
        "policies": {"acqb": Acqb()},
        "horizon": 1000,
    }
    with pytest.raises(ValueError, match=r"memory_gb must allow a run of 4\d\.\d GB on each"):
        cqbjax.sweep(**{**GOOD, **large})
    with pytest.raises(ValueError, match=r"memory_gb must allow a run of \d\d GB on each"):
        cqbjax.sweep(**{**GOOD, "horizon": 10**9})
    assert spec.choose_records(10**9) == spec.RecordSchedule(4 * 10**6, 25, 10)


@pytest.mark.slow
def test_checking_slackness_in_small_batches_gives_the_same_result(monkeypatch):
    from cqbjax.sources import synthetic

    monkeypatch.setattr(synthetic, "LEAST_ACCEPTANCE", 0.05)
    monkeypatch.setattr(synthetic, "MOST_TRIED", 384)
    source, seeds, errors = Synthetic(num_servers=3, dim=2, slackness=0.0), np.arange(7), []
    for most in (2**22, 1):  # a context at a time
        monkeypatch.setattr(synthetic, "MOST_DRAWN", most)
        source.check(seeds, 0.4, 1)
        with pytest.raises(ValueError, match="is met by fewer than 0.05 of the") as caught:
            source.check(seeds, 0.7, 1)
        errors.append(str(caught.value))
    assert errors[0] == errors[1]


@pytest.mark.slow
def test_slackness_checks_of_many_seeds_draw_few_candidates(monkeypatch):
    """One batch of contexts suffices for nearly all seeds."""
    drawn, real = [], Synthetic._draw_utilities
    monkeypatch.setattr(
        Synthetic, "_draw_utilities",
        lambda self, draw, theta: drawn.append(len(theta)) or real(self, draw, theta),
    )  # fmt: skip
    Synthetic(slackness=0.1).check(np.arange(600), 0.5, 1)
    assert 600 <= sum(drawn) < 2 * 600


@pytest.mark.parametrize("number", cases([7, 300], [7]))
def test_rejected_seed_has_the_lowest_score_of_all_candidates(number, monkeypatch):
    """Just below what the least of all reaches every seed passes, and just above that one not."""
    from cqbjax.sources import synthetic

    monkeypatch.setattr(synthetic, "LEAST_ACCEPTANCE", 0.05)
    source, seeds = Synthetic(num_servers=3, dim=2, slackness=0.0), 5 + np.arange(number)
    theta, draw = source._theta_of(seeds), np.random.default_rng(0)
    every = [source._draw_utilities(draw, theta).max(axis=2) for _ in range(64)]
    score = np.sort(np.concatenate(every, axis=1), axis=1)[:, -math.ceil(0.05 * 8192)]
    border = float(expit(score.min()))
    source.check(seeds, border - 1e-5, 1)
    with pytest.raises(ValueError, match=rf"contexts of seed {seeds[np.argmin(score)]};"):
        source.check(seeds, border + 1e-5, 1)
