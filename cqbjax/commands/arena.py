"""Enter the arena: run a policy in every task, and set it beside all others.

python scripts/arena.py tasks                             # which tasks there are
python scripts/arena.py policy=my_policy.py:Mine          # in all of them
python scripts/arena.py policy=mine tasks=paper,retries seeds=5    # a first look
python scripts/arena.py verify arena/Mine                 # is it what it says?
python scripts/arena.py show                              # the board that comes with it, as a page
python scripts/arena.py board                             # run all of the package's own policies

A policy is a class of a file below the current folder, or a label of `conf/policy`. It writes
`arena/Mine/`: the table, the page, a picture and the runs. Only that policy runs: what the others
reached stands beside it where the package has it. The same command again goes on where it was
stopped.
"""

import argparse
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cqbjax.commands import _multirun, _tasks, _words
from cqbjax.commands._start import SOME_LEFT_OUT, Arguments, start_plain
from cqbjax.commands._tasks import Contestant, Entry
from cqbjax.commands._words import Run

if TYPE_CHECKING:
    from rich.console import Console

    from cqbjax.results.board import Board
    from cqbjax.studies.grid import Ready

ARGUMENTS = Arguments(description="Run a policy in every task of the arena.")
ARGUMENTS.add_argument(
    "words", nargs="+", metavar="WORD",
    help=f"{', '.join(_words.VERBS)}, or key=value: {', '.join(_words.KEYS)}",
)  # fmt: skip


def main() -> None:
    """Do what the command line asks for."""
    start_plain(arena, ARGUMENTS)


def arena(asked: argparse.Namespace) -> None:
    """List the tasks, show or run the board, verify a folder, or let a policy enter.

    Raises:
        ValueError: naming a word that is none.
        SystemExit: of status `SOME_LEFT_OUT`, where a task was left out.
    """
    verb, told = _words.check(asked.words)
    if verb == "tasks":
        for task in _tasks.listed():
            print(f"{task.name} (version {task.version}): {task.title}\n    {task.says}")
    elif verb == "verify":
        from cqbjax.commands import _verify

        _verify.verify(*told)
    elif verb == "show":
        _show(told)
    else:
        _enter(told)


def _show(folder: Path) -> None:
    """Write the board that came with the package as a table, pictures and a page.

    Raises:
        ValueError: none came with it.
    """
    from cqbjax.commands import _shown
    from cqbjax.results import board as boards
    from cqbjax.studies import showing

    known, console = boards.read(), showing.console()
    if not known.notes:
        raise ValueError("no board comes with this package: run one with `cqbjax arena board`")
    written = _shown.write(known, boards.none(), folder, None, console, _shown.CAME)
    console.print(", ".join(map(str, written)), markup=False, soft_wrap=True)


def _enter(run: Run) -> None:
    """Run one policy, or all, in the tasks, and write what came out."""
    from cqbjax.core import backend
    from cqbjax.results import board as boards
    from cqbjax.studies import showing
    from cqbjax.sweeping import executables

    backend.configure()
    executables.keep()
    console, known = showing.console(), boards.read()
    with _multirun.initialised():
        if run.contestant is not None:
            _check(run.contestant)
        entries, lost = _entries(run, known)
        made, failed = _play(entries, run, known, console)
    _write(made, known, run, console)
    if run.keeps and not lost and not failed:
        boards.write(made, boards.HERE)
    for task, why in (lost | failed).items():
        console.print(f"{task} left out: {why}", markup=False, soft_wrap=True)
    if lost or failed:
        raise SystemExit(SOME_LEFT_OUT)


def _check(contestant: Contestant) -> None:
    """Hold a policy to the contract, and to what a contestant may see.

    Raises:
        ContractError: in one sentence.
        ValueError: it cannot be made.
    """
    from cqbjax.commands._hydra import make_policies
    from cqbjax.core.contract import refusal
    from cqbjax.offline import Learnt
    from cqbjax.testing import check_fair, check_policy
    from cqbjax.testing.contract import PROBLEM
    from cqbjax.testing.contract.fair import SINGLE

    words = [f"policy=[{','.join(contestant.labels)}]", *contestant.words]
    ((config, *_),) = _multirun.compose([words])
    policy = make_policies(config.policy)[contestant.label]
    if isinstance(policy, Learnt):
        return  # what it will be is known when it has learnt
    why = refusal(policy, SINGLE)
    if why is not None:
        # Who could refuse it could not be looked at.
        raise ValueError(f"policy {contestant.label} must play N=4, K=1, d=3, but: {why}")
    for problem in (SINGLE, PROBLEM):
        if refusal(policy, problem) is None:
            check_policy(policy, problem, uncompiled=False)
    check_fair(policy)


def _entries(run: Run, known: "Board") -> tuple[list[Entry], dict[str, str]]:
    """Return the tasks that can run, and of the others why not.

    Raises:
        ValueError: none can.
    """
    entries, lost, kept = list[Entry](), dict[str, str](), dict[str, Any]()
    for task in run.tasks:
        try:
            entries.append(_tasks.entry(task, run.asked, run.contestant, known, kept))
        except (ValueError, OSError) as error:
            lost[task.name] = str(error).splitlines()[0]
    if not entries:
        name, why = next(iter(lost.items()))
        raise ValueError(f"no task can run; {name}: {why}")
    return entries, lost


def _play(
    entries: Sequence[Entry], run: Run, known: "Board", console: "Console"
) -> "tuple[Board, dict[str, str]]":
    """Say how long it will take, run what is missing, and return all runs."""
    from cqbjax.commands.run import carry_out
    from cqbjax.results import board as boards
    from cqbjax.studies import sharding, storing

    places, left = {}, {}
    for one in entries:
        name = one.task.name
        places[name] = place = run.asked.folder / "data" / name
        storing.check_writable(place)
        storing.set_aside_torn(place)
        left[name] = sharding.left_of([one.ready], place)
    stored = sum(not some for some in left.values())
    console.print(
        f"{len(entries)} tasks, {stored} of them stored: about {_minutes(left, run, known)}; the "
        "same command again goes on where this one is stopped"
    )
    rows, notes, failed = [], {}, dict[str, str]()
    for number, one in enumerate(entries):
        name, config = one.task.name, one.ready.point.config
        if left[name]:
            console.print(f"[{number + 1}/{len(entries)}] {one.task.title}", markup=False)
            lost, _ = carry_out(left[name], config, places[name], console, strict=False)
            if lost:
                failed[name] = next(iter(lost.values()))
                continue
        (point,) = sharding.read_back([one.ready], places[name])
        rows.append(boards.rows_of(point, name))
        notes[name] = _note(one, places[name])
    if not rows:
        raise ValueError(f"no task could run; {', '.join(failed.values())}")
    import polars as pl

    return boards.Board(pl.concat(rows), notes), failed


def _minutes(left: "Mapping[str, list[Ready]]", run: Run, known: "Board") -> str:
    """Say how long what is left takes: each program runs for a moment.

    All of the board's programs are more than a process remembers, and would be compiled twice:
    for them it is said what the board that is known took, where it has the tasks.
    """
    from cqbjax.sweeping.bars import bar

    names = [name for name, some in left.items() if some]
    if run.contestant is None and {*names} <= {*known.notes}:
        notes = [known.notes[name] for name in names]
        seconds = sum(sum(note["seconds"].values()) * _share(note, run) for note in notes)
        return f"{seconds / 60:.1f} min, as when the board was made, without compiling"
    with bar() as progress:
        each = [some[0].kind.reckon(some, progress) for some in left.values() if some]
    return f"{sum(one.running for some in each for one in some) / 60:.1f} min"


def _share(note: Mapping[str, Any], run: Run) -> float:
    """Return the share of a board's task that is run."""
    seeds = run.asked.seeds or note["seeds"]
    return float(run.asked.rounds * seeds / note["seeds"])


def _note(one: Entry, place: Path) -> dict[str, Any]:
    """Return what is said of the runs of a task: what they follow from, and what they took."""
    from cqbjax.store import pieces

    content, config = one.ready.kind.content(one.ready), one.ready.point.config
    seconds, tried = dict[str, float](), dict[str, set[str]]()
    for file in pieces.found(place):
        for manifest in pieces.manifests_of(file):
            seconds |= manifest.get("run_seconds", {})
            versions = manifest["versions"] | {"machine": str(manifest["machine"])}
            for label, key in manifest["policies"].items():
                tried.setdefault(label, set()).add(key)
    # How many policies of each label have been run on these seeds so far.
    looks = {label: len(tried.get(label, ())) for label in one.ready.policies}
    return {
        "version": one.task.version, "content": content.point, "policies": dict(content.policies),
        "known": sorted(one.known), "seeds": config.num_seeds, "horizon": config.horizon,
        "first_seed": config.first_seed, "seconds": seconds, "by": versions,
        "looks": looks,
    }  # fmt: skip


def _write(made: "Board", known: "Board", run: Run, console: "Console") -> None:
    """Write the table, the picture and the page, and print where the policy stands."""
    from cqbjax.commands import _shown

    own, folder = run.contestant, run.asked.folder
    written = _shown.write(made, known, folder, own.label if own else None, console)
    if own is not None:
        written += _policys_file(own, folder)
    console.print(", ".join(map(str, written)), markup=False, soft_wrap=True)


def _policys_file(contestant: Contestant, folder: Path) -> list[Path]:
    """Put a copy of the policy's file beside its numbers, from which they can be run again."""
    words = [word for word in contestant.words if "._target_=" in word]
    if not words:
        return []
    module = words[0].partition("=")[2].rpartition(".")[0]
    file = Path(str(sys.modules[module].__file__))
    copy = folder / Path(*module.split(".")).with_suffix(".py")
    copy.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, copy)
    return [copy]
