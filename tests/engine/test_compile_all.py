"""Programs that are compiled before their groups run: the same, each once, and stopped at once."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import pytest
import xarray as xr

import cqbjax
from cqbjax.core import backend
from cqbjax.engine import batches, programs, sweep
from cqbjax.engine.progress import Reporter
from cqbjax.engine.validation import build_spec
from cqbjax.policies import LlmRanking, RandomRouting
from cqbjax.sources import Synthetic

pytestmark = pytest.mark.slow


ROOT = Path(__file__).resolve().parents[2]
SOURCE = Synthetic(num_servers=3, dim=2)
POLICIES = {"linucb": LlmRanking(), "random": RandomRouting()}
KEYS = {"arrival_rate": [0.4], "num_seeds": 2, "horizon": 30}
TIMES = ["seconds_per_round", "compile_seconds"]
# One draws for all; each of three groups starts and advances.
PROGRAMS = 1 + 2 * 3


@pytest.fixture
def compilations(monkeypatch, fresh_programs):
    """List the platforms of what is compiled; `compilations.fault` is called before each."""
    compile_lowered = backend.compile_lowered

    class CompiledPrograms(list):
        fault = staticmethod(lambda number: None)

    made = CompiledPrograms()

    def record_compilation(lowered, platform, **options):
        made.append(platform)
        made.fault(len(made))
        return compile_lowered(lowered, platform, **options)

    monkeypatch.setattr(backend, "compile_lowered", record_compilation)
    return made


def shapes():
    whole = batches.plan_sweep(
        [build_spec(POLICIES, SOURCE, [0.4], range(2), 30)], devices=jax.devices()[:2]
    )
    return [whole.program_spec(batch, batch.initial_slots()) for batch in whole.batches]


class CompilationCounter(Reporter):
    """Count what is compiled before the first group runs."""

    def __init__(self, compilations):
        self.compilations, self.compiled = compilations, None

    def set_activity(self, activity, label):
        if activity == "running" and self.compiled is None:
            self.compiled = len(self.compilations)


def test_ahead_of_time_compilation_yields_the_programs_compiled_on_demand(
    compilations, monkeypatch
):
    reported = CompilationCounter(compilations)
    ahead = cqbjax.sweep(POLICIES, SOURCE, **KEYS, progress=reported)
    assert reported.compiled == len(compilations) == PROGRAMS, "each once"
    assert (ahead.compile_seconds > 0).all()
    again = cqbjax.sweep(POLICIES, SOURCE, **KEYS)
    assert len(compilations) == PROGRAMS and (again.compile_seconds == 0).all()
    programs.clear_cache()
    monkeypatch.setattr(sweep, "compile_batches", lambda *arguments: None)
    demanded = cqbjax.sweep(POLICIES, SOURCE, **KEYS)
    assert len(compilations) == 2 * PROGRAMS and (demanded.compile_seconds > 0).all()
    for other in (again, demanded):
        xr.testing.assert_identical(other.drop_vars(TIMES), ahead.drop_vars(TIMES))


def test_compile_seconds_count_for_the_first_batch_that_uses_a_program(compilations):
    one, two, _ = shapes()
    assert programs.compile_one(one).seconds > 0 == programs.compile_one(one).seconds
    programs.compile_all([one, two])
    assert programs.compile_one(two).seconds > 0 and len(compilations) == PROGRAMS - 2


def test_lowered_programs_have_the_output_shardings_of_compiled_ones(fresh_programs):
    """Else programs of several devices refuse what they are given."""
    for program in programs._lower(shapes()[0].shared_spec):
        known, made = program.out_info, program.compile().out_info
        for one, other in zip(jax.tree.leaves(known), jax.tree.leaves(made), strict=True):
            assert (one.shape, one.dtype, one.sharding) == (
                other.shape,
                other.dtype,
                other.sharding,
            )


def test_compiler_errors_are_raised_and_not_cached(compilations):
    def fault(number):
        raise jax.errors.JaxRuntimeError("out of memory")

    compilations.fault = fault
    with pytest.raises(jax.errors.JaxRuntimeError, match="out of memory"):
        cqbjax.sweep(POLICIES, SOURCE, **KEYS)
    compilations.fault = lambda number: None
    cqbjax.sweep(POLICIES, SOURCE, **KEYS)


def test_pending_programs_are_not_compiled_after_an_interrupt(compilations):
    """The next call compiles what is missing."""
    compilations.fault = lambda number: time.sleep(1.0)

    def interrupt(number):
        if number == 1:
            raise KeyboardInterrupt

    one, two, _ = shapes()
    with pytest.raises(KeyboardInterrupt):
        programs.compile_all([one, two], interrupt)
    assert 0 < len(compilations) <= len(one.devices) < 3, "draws, starts and advances"
    compilations.fault = lambda number: None
    programs.compile_all([one])
    assert len(compilations) == 3


STUDY = """
import time
from cqbjax.core import backend
from cqbjax.cli.run import main

def compile_lowered(lowered, platform, **options):
    print("compiling", flush=True)
    time.sleep(2)

backend.compile_lowered = compile_lowered
main()
"""


def test_a_command_ends_soon_after_ctrl_c_while_it_compiles(tmp_path):
    words = ["policy=[acqb,random,q_ucb,q_ths]", "num_seeds=2", f"results_dir={tmp_path}"]
    command = subprocess.Popen(
        [sys.executable, "-c", STUDY, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, cwd=tmp_path, text=True,
    )  # fmt: skip
    try:
        # Two threads may write their words before either ends its line.
        assert command.stdout.readline().startswith("compiling")
        command.send_signal(signal.SIGINT)
        begun = time.monotonic()
        reported, errors = command.communicate(timeout=60)
    finally:
        command.kill()
    assert command.returncode == 130, errors
    assert reported.count("compiling") <= (os.cpu_count() or 1), "what waits is left"
    assert time.monotonic() - begun < 30
