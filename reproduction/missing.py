"""The studies of the report that have no result yet: what they would take, and running them."""

import subprocess
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cqbjax.cli._hydra import quote
from reproduction.paper import catalogue
from reproduction.paper.catalogue import Listed

if TYPE_CHECKING:
    from rich.console import Console

RUN = Path(__file__).resolve().parents[1] / "scripts" / "run.py"


def run(asked: Namespace, console: "Console") -> dict[str, str]:
    """Run the studies that have neither arrays nor an extract, each as `scripts/run.py` would.

    How long they take is said first: about what it is on two cores. In a dry run each is asked
    for its own estimate, which compiles its programs here and runs next to nothing.

    Args:
        asked: the arguments of `report`.
        console: told of them.

    Returns:
        Name of a study that could not run -> why.

    Raises:
        ValueError: a name that is of no study of the report.
    """
    left, size = missing(asked.root, asked.names), asked.missing
    if not left:
        console.print("no study of the report is missing")
        return {}
    for one in left:
        words = " ".join(one.sizes.get(size, ()))
        line = f"{one.name}: {one.minutes[size]:g} min on two cores; {words or 'as configured'}"
        console.print(line, markup=False, soft_wrap=True)
    total = sum(one.minutes[size] for one in left)
    console.print(f"{len(left)} studies are missing: about {total:.0f} min at size {size}")
    lost: dict[str, str] = {}
    for number, one in enumerate(left):
        console.print(f"[{number + 1}/{len(left)}] {one.name}", markup=False)
        why = _run(one, asked)
        if why:
            lost[one.name] = why
            console.print(f"{one.name} left out: {why}", markup=False, soft_wrap=True)
    return lost


def missing(root: Path, names: Sequence[str]) -> list[Listed]:
    """Return the studies of the report with neither arrays nor an extract.

    Raises:
        ValueError: a name that is of no study of the report.
    """
    listed = catalogue.studies()
    for name in names:
        if name not in {one.name for one in listed}:
            known = ", ".join(one.name for one in listed)
            raise ValueError(f"{name} is no study of the report; choose from {known}")
    return [
        one
        for one in listed
        if (not names or one.name in names)
        and not any((root / "data" / one.name).glob("*.nc"))
        and not (root / "report" / "extracts" / one.name).is_dir()
    ]


def _run(one: Listed, asked: Namespace) -> str:
    """Run a study in a process of its own, since each sets JAX up; return why it could not."""
    words = [f"experiment={one.name}", *one.sizes.get(asked.missing, ())]
    words += [quote("results_dir", asked.root), f"dry_run={str(asked.dry_run).lower()}"]
    words += [quote(k, v) for k in ("data_dir", "cache_dir") if (v := getattr(asked, k))]
    command = [sys.executable, str(RUN), *words]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    if done.returncode == 0:
        return ""
    said = [line for line in done.stderr.splitlines() if line.strip()]
    return said[-1].removeprefix("error: ") if said else f"status {done.returncode}"
