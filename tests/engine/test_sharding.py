"""Eight devices give the numbers of one, also when the runs do not divide evenly."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]

# Seven seeds at one rate: on eight devices one run is padding, and in chunks of two on three
# devices the last chunk is.
PROGRAM = """
import json
import jax
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_platforms", "cpu")
import numpy as np
from tests.reference import scenarios
import cqbjax
from cqbjax.core import backend
from cqbjax.policies import Acqb

source = scenarios.routing(np.random.default_rng(3).normal(0.5, 1.0, (6, 3)))
devices = jax.devices()
answers, made, compile_ = {}, [], backend.compile_lowered


def spy(*args, **options):
    made.append(compile_(*args, **options))
    return made[-1]


backend.compile_lowered = spy
ways = {"one": (devices[:1], None), "eight": (devices, None), "three": (devices[:3], 2)}
for name, (some, chunk) in ways.items():
    data = cqbjax.sweep(
        {"acqb": Acqb(alpha_scale=0.5)}, source, arrival_rate=[0.6], num_seeds=7, horizon=80,
        record_every=2, devices=some, chunk=chunk,
    )
    answers[name] = {key: data[key].values.tolist() for key in
                     ("queue_length", "departures", "explored", "regret")}
texts = [program.as_text() for program in made]
words = ("all-reduce", "all-gather", "all-to-all", "collective-permute", "reduce-scatter")
talk = sorted({word for word in words for text in texts if word in text})
print(json.dumps({"devices": len(devices), "programs": len(texts), "talk": talk, **answers}))
"""


def test_eight_devices_reproduce_the_numbers_of_one():
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    answers = json.loads(done.stdout.splitlines()[-1])
    assert answers.pop("devices") == 8
    assert answers.pop("programs") >= 3 and answers.pop("talk") == [], "runs need no communication"
    one = answers.pop("one")
    assert len({json.dumps(run) for run in one["departures"][0][0]}) == 7, "seeds must differ"
    for name, other in answers.items():
        for key, values in one.items():
            if key != "regret":
                assert other[key] == values, f"{key} of {name} devices"
        regrets = zip(flatten(other["regret"]), flatten(one["regret"]), strict=True)
        assert max(abs(a - b) for a, b in regrets) <= 1e-5
        assert max(flatten(one["regret"])) > 0.1


def flatten(values):
    """Return the numbers of nested lists in order."""
    if not isinstance(values, list):
        return [values]
    return [number for part in values for number in flatten(part)]
