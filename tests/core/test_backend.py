"""Where compiled programs are kept, and what is told of the machine."""

import pathlib

import jaxlib

from cqbjax.core import backend

PARENT = pathlib.Path("xla")


def test_another_processor_or_jaxlib_keeps_its_programs_elsewhere(monkeypatch):
    here = backend.programs_folder(PARENT)
    assert here == backend.programs_folder(PARENT) and here.parent == PARENT
    with monkeypatch.context() as patch:
        patch.setattr(jaxlib, "__version__", "0.0.1")
        other = backend.programs_folder(PARENT)
    monkeypatch.setattr(backend, "_cpuinfo", lambda *fields: "fpu sse")
    folders = {here, other, backend.programs_folder(PARENT)}
    assert len(folders) == 3


def test_programs_are_kept_where_the_environment_says_or_the_caller(monkeypatch, tmp_path):
    told = {}
    monkeypatch.setattr(backend.jax.config, "update", told.__setitem__)
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "said"))
    monkeypatch.delenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", raising=False)
    backend.configure()
    assert told["jax_compilation_cache_dir"] == str(tmp_path / "said")
    assert told["jax_default_matmul_precision"] == "highest" and told["jax_num_cpu_devices"] >= 1
    assert told["jax_persistent_cache_min_compile_time_secs"] == 0.1
    told.clear()
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    backend.configure(str(tmp_path / "given"))
    assert told["jax_compilation_cache_dir"] == str(tmp_path / "given")
    assert "jax_persistent_cache_min_compile_time_secs" not in told
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    backend.configure()
    assert pathlib.Path(told["jax_compilation_cache_dir"]).parent.name == "xla"
    assert list(backend.compiler_options("cpu")) == ["xla_disable_hlo_passes"]
    assert backend.compiler_options("gpu") == {}


def test_the_processor_is_told_where_the_system_tells_it(monkeypatch, tmp_path):
    monkeypatch.setattr(backend, "CPUINFO", tmp_path / "cpuinfo")
    assert backend.describe()["cpu"] == "unknown"
    elsewhere = backend.programs_folder(PARENT)
    backend.CPUINFO.write_text(
        "processor\t: 0\nmodel name\t: A CPU\nFeatures\t: fp asimd\n\nmodel name\t: Another\n"
    )
    assert backend.describe()["cpu"] == "A CPU" and backend._cpuinfo("nothing") == ""
    assert backend._cpuinfo("flags", "Features") == "fp asimd"
    assert backend.programs_folder(PARENT) != elsewhere
