"""A policy enters the arena: it runs in the tasks and is compared with all others."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
from rich.console import Console

from cqbjax.arena.board import Board, read_board, tabulate_point
from cqbjax.arena.report import write_report
from cqbjax.arena.tasks import Composer, PreparedTask, Request, prepare_entry
from cqbjax.core import backend
from cqbjax.core.contract import is_third_party, policy_error, prefix_errors
from cqbjax.core.files import check_writable, write_atomic
from cqbjax.engine.progress import show_progress
from cqbjax.experiments import display, loop
from cqbjax.offline import OfflinePolicy
from cqbjax.results.index import ResultIndex
from cqbjax.testing import PROBLEM, check_fairness, check_policy
from cqbjax.testing.fairness import SINGLE


def enter(request: Request, composer: Composer) -> bool:
    """Run one policy, or all, in the tasks, and write and print the results.

    Returns:
        Whether every task ran; the console names the others.

    Raises:
        ValueError: the policy is invalid, or no task can run.
    """
    backend.configure()
    console, board, contestant = display.make_console(), read_board(), request.contestant
    if contestant is not None:
        config = composer.compose(contestant.overrides()).policy[contestant.label]
        check_contestant(contestant.label, composer.make(config))
    entries, skipped = _prepare_entries(request, board, composer)
    made, failed = _run_entries(entries, request, composer, console)
    label = contestant.label if contestant else None
    written = write_report(made, board, request.folder, label, console)
    if contestant is not None and contestant.target:
        # From this copy of the policy's file its results can be run again.
        module = contestant.target.rpartition(".")[0]
        written.append(request.folder / Path(*module.split(".")).with_suffix(".py"))
        write_atomic(written[-1], Path(str(sys.modules[module].__file__)).read_bytes())
    skipped |= failed
    absent = [f"{task} left out: {why}" for task, why in skipped.items()]
    display.print_lines(console, [", ".join(map(str, written)), *absent])
    return not skipped


def check_contestant(label: str, policy: Any, seed: int = 0) -> None:
    """Check a policy's contract, and that it uses only what a contestant may see.

    Args:
        label: in messages.
        policy: the policy.
        seed: seed of the random instances.

    Raises:
        ContractError: the policy breaks the contract.
        ValueError: it rejects the instances.
    """
    if isinstance(policy, OfflinePolicy):
        # There is no policy to check before it is trained.
        if is_third_party(policy):
            text = f"policy {label} cannot be checked: it is trained before it runs"
            raise ValueError(f"{text}; `cqbjax run arena=TASK` can run it")
        return
    why = policy_error(policy, SINGLE)
    if why is not None:
        # A policy that rejects these problems could not be checked.
        raise ValueError(f"policy {label} must play N=4, K=1, d=3, but: {why}")
    for problem in (SINGLE, PROBLEM):
        if policy_error(policy, problem) is None:
            # A policy that answers with one LLM must say so, or this fails at K = 2.
            with prefix_errors(f"at K={problem.assortment_size} (`check` may reject other K)"):
                check_policy(policy, problem, seed)
    check_fairness(policy, seed)


def _prepare_entries(
    request: Request, board: Board, composer: Composer
) -> tuple[list[PreparedTask], dict[str, str]]:
    """Return the tasks that can run, and the reason for each other task.

    Raises:
        ValueError: no task can run.
    """
    entries, skipped, cache = list[PreparedTask](), dict[str, str](), dict[str, Any]()
    for task in request.tasks:
        try:
            entries.append(prepare_entry(task, request, board, composer, cache))
        except (ValueError, OSError) as error:
            skipped[task.name] = str(error).splitlines()[0]
    if not entries:
        name, why = next(iter(skipped.items()))
        raise ValueError(f"no task can run; {name}: {why}")
    return entries, skipped


def _run_entries(
    entries: Sequence[PreparedTask], request: Request, composer: Composer, console: Console
) -> tuple[Board, dict[str, str]]:
    """Run what is not stored, and return all results.

    Raises:
        ValueError: no task ran.
    """
    indices, left = {}, {}
    for entry in entries:
        name = entry.task.name
        folder = check_writable(request.folder / "data" / name, "out")
        indices[name] = index = ResultIndex.of_study(folder, entry.ready.point.config.name)
        index.set_aside_unreadable()
        left[name] = loop.select_missing([entry.ready], index)
    stored = sum(not points for points in left.values())
    resume = "the same command resumes after an interruption"
    console.print(f"{len(entries)} tasks, {stored} of them stored; {resume}")
    rows, notes, failed = [], {}, dict[str, str]()
    for number, entry in enumerate(entries):
        name = entry.task.name
        if left[name]:
            console.print(f"[{number + 1}/{len(entries)}] {entry.task.title}", markup=False)
            with show_progress() as progress:
                lost = loop.run_points(
                    left[name], indices[name], composer.make, progress, console, fail_fast=False
                )
            if lost:
                failed[name] = next(iter(lost.values()))
                continue
        (point,) = loop.read_back([entry.ready], indices[name])
        rows.append(tabulate_point(point, name))
        notes[name] = _describe(entry, indices[name])
    if not rows:
        raise ValueError(f"no task could run; {', '.join(failed.values())}")
    return Board(pl.concat(rows), notes), failed


def _describe(entry: PreparedTask, index: ResultIndex) -> dict[str, Any]:
    """Return a board's note on a task: what its results depend on."""
    key, config = entry.ready.study_type.cache_key(entry.ready), entry.ready.point.config
    manifest = index.computations()[-1][1]
    return {
        "version": entry.task.version, "content": key.point, "policies": dict(key.policies),
        "known": sorted(entry.known), "seeds": config.num_seeds, "horizon": config.horizon,
        "first_seed": config.first_seed,
        "by": manifest["versions"] | {"machine": str(manifest["machine"])},
    }  # fmt: skip
