"""Measure how fast the simulator is on this machine, and print a table.

python scripts/bench.py [--quick] [--json FILE] [--only SECTION ...] [--study]
python scripts/bench.py --table FILE      # write results/bench/<machine>.md from a report
"""

import argparse
import importlib.util
import os
import sys
import tempfile
from pathlib import Path
from types import ModuleType

# Before NumPy is imported: its loops are timed on one core.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

from rich.console import Console  # noqa: E402

from cqbjax import bench  # noqa: E402
from cqbjax.sweeping import backend  # noqa: E402

REFERENCE = Path(__file__).resolve().parent.parent / "cqbjax" / "testing" / "reference.py"


def parse(words: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Measure how fast the simulator is.")
    parser.add_argument("--quick", action="store_true", help="few, short cases: does all work?")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report here")
    parser.add_argument("--only", nargs="+", default=[], metavar="SECTION",
                        help=f"of {', '.join(bench.SECTIONS)}")  # fmt: skip
    parser.add_argument("--study", action="store_true", help="time the offline study on a CPU too")
    parser.add_argument("--table", type=Path, metavar="FILE",
                        help="measure nothing: write a stored report as Markdown")  # fmt: skip
    parser.add_argument("--tables", type=Path, default=Path("results/bench"), metavar="FOLDER",
                        help="where --table writes")  # fmt: skip
    return parser.parse_args(words)


def load_reference(path: Path = REFERENCE) -> ModuleType | None:
    """Load the tests' reference simulator from its file; None outside a checkout."""
    if not path.is_file():
        return None
    spec = importlib.util.spec_from_file_location("bench_reference", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # A dataclass looks its module up by name.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def main(words: list[str]) -> None:
    """Measure, print, and write what is asked for."""
    asked = parse(words)
    wide = Console(width=None if sys.stdout.isatty() else 170)
    if asked.table:
        print(bench.markdown(bench.load(asked.table), asked.tables))
        return
    errors = Console(stderr=True)
    reference = load_reference()
    if reference is None:
        errors.print(f"{REFERENCE} is absent: its ratios are left out", markup=False)
    with tempfile.TemporaryDirectory(prefix="bench_cache_") as cache:
        backend.configure(Path(cache))
        report = bench.run(
            Path(cache), asked.quick, reference, asked.only, asked.study,
            lambda what: errors.print(what, style="dim", markup=False),
        )  # fmt: skip
    bench.show(report, wide)
    if asked.json:
        bench.save(report, asked.json)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except ValueError as error:
        sys.exit(f"error: {error}")
