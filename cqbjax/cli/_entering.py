"""A policy enters the arena: it runs in the tasks, and is set beside all others."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
from rich.console import Console

from cqbjax.cli import _multirun, _shown, _tasks
from cqbjax.cli._hydra import make_policies
from cqbjax.cli._start import SOME_LEFT_OUT
from cqbjax.cli._tasks import Contestant, Entry
from cqbjax.cli._words import Run
from cqbjax.cli.run import runner
from cqbjax.core import backend
from cqbjax.core.contract import refusal
from cqbjax.core.files import check_writable, write_atomic
from cqbjax.engine.progress import show_progress
from cqbjax.experiments import sharding, showing, storing
from cqbjax.experiments.grid import Ready
from cqbjax.offline import Learnt
from cqbjax.results import board as boards
from cqbjax.results import pieces
from cqbjax.results.board import Board
from cqbjax.testing import check_fair, check_policy
from cqbjax.testing.contract import PROBLEM
from cqbjax.testing.contract.fair import SINGLE


def show(folder: Path) -> None:
    """Write the board that came with the package as a table, pictures and a page.

    Raises:
        ValueError: none came with it.
    """
    known, console = boards.read(), showing.console()
    if not known.notes:
        raise ValueError("no board comes with this package: run one with `cqbjax arena board`")
    written = _shown.write(known, boards.none(), folder, None, console, _shown.CAME)
    console.print(", ".join(map(str, written)), markup=False, soft_wrap=True)


def enter(run: Run) -> None:
    """Run one policy, or all, in the tasks, and write what came out."""
    backend.configure()
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


def _entries(run: Run, known: Board) -> tuple[list[Entry], dict[str, str]]:
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
    entries: Sequence[Entry], run: Run, known: Board, console: Console
) -> tuple[Board, dict[str, str]]:
    """Say how long it will take, run what is missing, and return all runs."""
    places, left = {}, {}
    for one in entries:
        name = one.task.name
        places[name] = place = run.asked.folder / "data" / name
        check_writable(place, "out")
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
            with show_progress() as progress:
                here = left[name], places[name], progress
                lost = runner(config, console)(*here, fail_fast=False)
            if lost:
                failed[name] = next(iter(lost.values()))
                continue
        (point,) = sharding.read_back([one.ready], places[name])
        rows.append(boards.rows_of(point, name))
        notes[name] = _note(one, places[name])
    if not rows:
        raise ValueError(f"no task could run; {', '.join(failed.values())}")

    return boards.Board(pl.concat(rows), notes), failed


def _minutes(left: Mapping[str, list[Ready]], run: Run, known: Board) -> str:
    """Say how long what is left takes: each program runs for a moment.

    All of the board's programs are more than a process remembers, and would be compiled twice:
    for them it is said what the board that is known took, where it has the tasks.
    """
    names = [name for name, some in left.items() if some]
    if run.contestant is None and {*names} <= {*known.notes}:
        notes = [known.notes[name] for name in names]
        seconds = sum(sum(note["seconds"].values()) * _share(note, run) for note in notes)
        return f"{seconds / 60:.1f} min, as when the board was made, without compiling"
    with show_progress() as progress:
        each = [some[0].kind.reckon(some, progress) for some in left.values() if some]
    return f"{sum(one.running for some in each for one in some) / 60:.1f} min"


def _share(note: Mapping[str, Any], run: Run) -> float:
    """Return the share of a board's task that is run."""
    seeds = run.asked.seeds or note["seeds"]
    return float(run.asked.rounds * seeds / note["seeds"])


def _note(one: Entry, place: Path) -> dict[str, Any]:
    """Return what is said of the runs of a task: what they follow from, and what they took."""
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


def _write(made: Board, known: Board, run: Run, console: Console) -> None:
    """Write the table, the picture and the page, and print where the policy stands."""
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
    write_atomic(copy, file.read_bytes())
    return [copy]
