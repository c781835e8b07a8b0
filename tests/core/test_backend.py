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
