"""Measure how fast the simulator is on this machine, and print a table.

python scripts/bench.py [--quick] [--json FILE] [--only SECTION ...]
python scripts/bench.py --table FILE      # write results/bench/<machine>.md from a report
python scripts/bench.py --compile-for h100 [--quick] [--json FILE]   # without a device
"""

import argparse
import functools
import os
import sys
import tempfile
from pathlib import Path

# Before NumPy is imported: its loops are timed on one core.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

from rich.console import Console  # noqa: E402

import benchmarks  # noqa: E402
from benchmarks import compile_for_gpu  # noqa: E402
from cqbjax.cli._command import Arguments, run_plain  # noqa: E402
from cqbjax.core import backend  # noqa: E402
from cqbjax.core.files import check_writable  # noqa: E402

SECTIONS, TARGETS = (", ".join(x) for x in (benchmarks.SECTIONS, compile_for_gpu.TARGETS))
ARGUMENTS = Arguments(description="Measure how fast the simulator is.")
_add = ARGUMENTS.add_argument
_add("--quick", action="store_true", help="few, short cases, to test that all works")
_add("--json", type=Path, metavar="FILE", help="write the report here")
_add("--only", nargs="+", default=[], metavar="SECTION", help=f"of {SECTIONS}")
_add("--table", type=Path, metavar="FILE",
     help="measure nothing: write a stored report as Markdown below results/bench")  # fmt: skip
_add("--compile-for", choices=compile_for_gpu.TARGETS, metavar="DEVICE",
     help="measure nothing: compile the main programs for a GPU and count their kernels and bytes "
     f"(of {TARGETS}; needs the {compile_for_gpu.EXTRA} extra)")  # fmt: skip


def main() -> None:
    """Measure what the command line requests."""
    run_plain(measure, ARGUMENTS)


def measure(asked: argparse.Namespace) -> None:
    """Measure, print, and write the report."""
    if asked.table:
        print(benchmarks.markdown(benchmarks.load(asked.table)))
        return
    if asked.json:
        check_writable(asked.json.parent, "--json")
        if asked.json.is_dir():
            raise ValueError(f"--json {asked.json} is a folder: name a file")
    errors = Console(stderr=True)
    absent = compile_for_gpu.find_missing() if asked.compile_for else None
    if absent:
        errors.print(absent, markup=False, soft_wrap=True)
        return
    log = functools.partial(errors.print, style="dim", markup=False)
    with tempfile.TemporaryDirectory(prefix="bench_cache_") as cache:
        backend.configure(Path(cache))
        if asked.compile_for:
            target = compile_for_gpu.TARGETS[asked.compile_for]
            report = compile_for_gpu.run(target, asked.quick, log)
        else:
            report = benchmarks.run(asked.quick, asked.only, log)
    benchmarks.show(report, Console(width=None if sys.stdout.isatty() else 170))
    if asked.json:
        benchmarks.save(report, asked.json)
