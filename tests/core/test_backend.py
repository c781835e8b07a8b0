"""How programs are compiled, where they are stored, and how the machine is described."""

import functools
import os
import pathlib
import secrets
from pathlib import Path

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np
import pytest
from names import ambiguous_names

from cqbjax.core import backend, files
from cqbjax.offline import fits

PARENT = pathlib.Path("xla")


def test_compiled_programs_are_stored_per_processor_and_jaxlib(monkeypatch):
    here = backend.programs_folder(PARENT)
    assert here == backend.programs_folder(PARENT) and here.parent == PARENT
    with monkeypatch.context() as patch:
        patch.setattr(jaxlib, "__version__", "0.0.1")
        other = backend.programs_folder(PARENT)
    monkeypatch.setattr(backend, "_cpuinfo", lambda *fields: "fpu sse")
    folders = {here, other, backend.programs_folder(PARENT)}
    assert len(folders) == 3


def test_programs_are_stored_where_the_environment_or_the_caller_chooses(monkeypatch, tmp_path):
    updates = {}
    monkeypatch.setattr(backend.jax.config, "update", updates.__setitem__)
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "said"))
    monkeypatch.delenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", raising=False)
    backend.configure()
    assert updates["jax_compilation_cache_dir"] == str(tmp_path / "said")
    assert (
        updates["jax_default_matmul_precision"] == "highest" and updates["jax_num_cpu_devices"] >= 1
    )
    assert updates["jax_persistent_cache_min_compile_time_secs"] == 0.1
    updates.clear()
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    backend.configure(str(tmp_path / "given"))
    assert updates["jax_compilation_cache_dir"] == str(tmp_path / "given")
    assert "jax_persistent_cache_min_compile_time_secs" not in updates
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    backend.configure()
    assert pathlib.Path(updates["jax_compilation_cache_dir"]).parent.name == "xla"


def test_a_late_configuration_asks_to_restart_the_kernel(monkeypatch):
    jnp.zeros(1)
    monkeypatch.setattr(backend.os, "sched_getaffinity", lambda _: range(12345), raising=False)
    with pytest.raises(RuntimeError, match="restart the kernel"):
        backend.configure()


def test_without_a_writable_home_the_cache_is_temporary_and_warned_of_once(monkeypatch, tmp_path):
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    monkeypatch.setattr(backend.jax.config, "update", lambda *_: None)
    lost = RuntimeError("could not determine the home directory")
    (tmp_path / "file").write_text("")
    for where in (lost, "~/.cache/cqbjax", "/proc/.cache/cqbjax", str(tmp_path / "file" / "a")):
        files.user_cache.cache_clear()
        with monkeypatch.context() as patch, pytest.warns(UserWarning) as warned:
            patch.setattr(files.platformdirs, "user_cache_dir", _always(where))
            cached = fits.cache_folder(None)
            backend.configure()
        (one,) = [str(each.message) for each in warned]
        assert "this process alone" in one and "cache_dir= for fits" in one
        assert cached.parent.is_dir() and cached.name == "fits" and not Path("~").exists()
    files.user_cache.cache_clear()


def _always(where):
    def folder(_):
        if isinstance(where, Exception):
            raise where
        return where

    return folder


def test_a_cache_that_cannot_be_written_is_refused_by_its_key(tmp_path):
    (tmp_path / "file").write_text("")
    for folder in (str(tmp_path / "file"), str(tmp_path / "file" / "below"), "/proc/fits"):
        with pytest.raises(ValueError, match=f"cache_dir: {folder} cannot be written"):
            fits.cache_folder(folder)
    assert fits.cache_folder(str(tmp_path / "made")).is_dir()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore:os.fork")  # JAX's own
def test_forked_processes_are_refused_after_a_sweep():
    backend.check_process()
    for _ in range(2):
        child = os.fork()
        if not child:
            try:
                backend.check_process()
            except RuntimeError as error:
                os._exit(7 if "get_context('spawn')" in str(error) else 1)
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    backend.check_process()


def test_processor_name_is_read_from_cpuinfo(monkeypatch, tmp_path):
    monkeypatch.setattr(backend, "CPUINFO", tmp_path / "cpuinfo")
    assert backend.describe()["cpu"] == "unknown"
    elsewhere = backend.programs_folder(PARENT)
    backend.CPUINFO.write_text(
        "processor\t: 0\nmodel name\t: A CPU\nFeatures\t: fp asimd\n\nmodel name\t: Another\n"
    )
    assert backend.describe()["cpu"] == "A CPU" and backend._cpuinfo("nothing") == ""
    assert backend._cpuinfo("flags", "Features") == "fp asimd"
    assert backend.programs_folder(PARENT) != elsewhere


TABLE, ROWS = np.arange(40, dtype=np.float32), np.arange(12) * 7 % 23
# JAX's cache finds a program whatever its names are: each test compiles one that was never stored.
OWN = secrets.randbelow(2**16)


def slices(factor, table, rows):
    """Add slices that JAX names `dynamic_slice` and some that XLA makes, its `dynamic-slice`."""
    of_jax = sum(jax.lax.dynamic_slice(table, (row,), (4,)) for row in rows)
    of_xla = jax.vmap(lambda row: jax.lax.dynamic_slice(factor * table, (row,), (4,)))(rows[:1])
    return of_jax + of_xla[0]


@pytest.mark.parametrize("emitters", [True, False])
def test_program_names_are_unambiguous_for_xla_emitters(emitters):
    factor = np.float32(OWN + emitters / 2)
    lowered = jax.jit(functools.partial(slices, factor)).lower(TABLE, ROWS)
    assert ambiguous_names(lowered.compile().as_text()), "with JAX's names some are"
    made = backend.compile_lowered(lowered, "cpu", emitters=emitters)
    assert ambiguous_names(made.as_text()) == []
    expected = sum(TABLE[row : row + 4] for row in ROWS) + factor * TABLE[:4]
    np.testing.assert_allclose(made(TABLE, ROWS), expected, rtol=1e-6)


def test_unknown_xla_options_are_omitted(monkeypatch):
    def lower_function():
        return jax.jit(lambda x: x + 1).lower(jnp.float32(1))

    monkeypatch.setattr(backend, "EMITTERS", "xla_cpu_an_option_of_a_later_version")
    assert backend.compile_lowered(lower_function(), "cpu", emitters=False)(np.float32(1)) == 2
    monkeypatch.setattr(lower_function().__class__, "compile", _raise_out_of_memory)
    with pytest.raises(jax.errors.JaxRuntimeError, match="no memory"):
        backend.compile_lowered(lower_function(), "cpu", emitters=False)


def _raise_out_of_memory(*_):
    raise jax.errors.JaxRuntimeError("no memory")


def test_gpu_programs_get_no_cpu_options():
    class LoweredProgram:
        def compile(self, *options):
            return options

    assert backend.compile_lowered(LoweredProgram(), "gpu", barriers=False, emitters=False) == ()
