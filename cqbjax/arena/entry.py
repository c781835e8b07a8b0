"""A policy enters the arena: it runs in the tasks and is compared with all others."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
from rich.console import Console

from cqbjax.arena.board import SCHEMA, Board, find_known, read_board, tabulate_point
from cqbjax.arena.report import write_report
from cqbjax.arena.scores import RANDOM
from cqbjax.arena.tasks import Composer, Request, Task, compose_task
from cqbjax.core import backend
from cqbjax.core.contract import is_third_party, policy_error, prefix_errors
from cqbjax.core.files import check_writable, write_atomic
from cqbjax.engine.progress import show_progress
from cqbjax.experiments import display, grid, loop, study_types
from cqbjax.experiments.grid import PreparedPoint
from cqbjax.experiments.study import Factory
from cqbjax.offline import OfflinePolicy
from cqbjax.results.index import ResultIndex
from cqbjax.testing import PROBLEM, check_fairness, check_policy
from cqbjax.testing.fairness import SINGLE


class PreparedTask(NamedTuple):
    """A task with the policies that run in it.

    Attributes:
        task: the task.
        ready: the prepared point.
        known: labels of the board's policies whose results are still valid.
        store: index of its stored results.
        left: what is not stored.
    """

    task: Task
    ready: PreparedPoint
    known: set[str]
    store: ResultIndex
    left: list[PreparedPoint]


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
    prepared, skipped, cache = list[PreparedTask](), dict[str, str](), dict[str, Any]()
    for task in request.tasks:
        try:
            prepared.append(prepare_task(task, request, board, composer, cache))
        except (ValueError, OSError) as error:
            skipped[task.name] = str(error).splitlines()[0]
    made = _run_tasks(prepared, skipped, composer, console)
    if not made.notes:
        name, why = next(iter(skipped.items()))
        raise ValueError(f"no task can run; {name}: {why}")
    label = contestant.label if contestant else None
    written = write_report(made, board, request.folder, label, console)
    if contestant is not None and contestant.target:
        # From this copy of the policy's file its results can be run again.
        module = contestant.target.rpartition(".")[0]
        written.append(request.folder / Path(*module.split(".")).with_suffix(".py"))
        write_atomic(written[-1], Path(str(sys.modules[module].__file__)).read_bytes())
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


def prepare_task(
    task: Task, request: Request, board: Board, composer: Composer, cache: dict[str, Any]
) -> PreparedTask:
    """Return a task, validated, with the policies that are to run.

    They are the contestant and, unless the board knows its results, random routing, by which
    scores are normalised. Without a contestant they are all policies of the task.

    Args:
        task: the task.
        request: how to run it.
        board: results of other policies.
        composer: instantiates the task.
        cache: objects of other tasks, by configuration.

    Raises:
        ValueError: the task cannot run.
        OSError: its data are missing.
    """
    known, words, factory = set[str](), list[str](), Factory(composer.make, cache)
    if request.contestant is not None:
        if task.name in board.notes and not request.tuning:
            # Of all policies and seeds of the task; nothing is validated.
            whole = compose_task(task, request._replace(seeds=None), composer)
            study_type = study_types.make_study_type(whole, factory.make_once)
            (point,) = study_type.compose(grid.compose(whole), whole, {})
            every = factory.make_once(point.config.kind).prepare(point, factory)
            known = find_known(board, task.name, every.study_type.cache_key(every))
        words = request.contestant.overrides(*([] if RANDOM in known else [RANDOM]))
    ready = composer.prepare(compose_task(task, request, composer, words), cache)
    folder = check_writable(request.folder / "data" / task.name, "out")
    index = ResultIndex.of_study(folder, ready.point.config.name)
    index.set_aside_unreadable()
    return PreparedTask(task, ready, known, index, loop.select_missing([ready], index))


def _run_tasks(
    prepared: Sequence[PreparedTask], skipped: dict[str, str], composer: Composer, console: Console
) -> Board:
    """Run what is not stored, and return all results; tasks that cannot run are added to `skipped`.

    The board's notes on a task are what its results depend on.
    """
    stored = sum(not one.left for one in prepared)
    resume = "the same command resumes after an interruption"
    if prepared:
        console.print(f"{len(prepared)} tasks, {stored} of them stored; {resume}")
    rows, notes = [pl.DataFrame(schema=SCHEMA)], dict[str, dict[str, Any]]()
    for number, (task, ready, known, store, left) in enumerate(prepared):
        if left:
            console.print(f"[{number + 1}/{len(prepared)}] {task.title}", markup=False)
            with show_progress() as progress:
                lost = loop.run_points(
                    left, store, composer.make, progress, console, fail_fast=False
                )
            if lost:
                skipped[task.name] = next(iter(lost.values()))
                continue
        (point,) = loop.read_back([ready], store)
        rows.append(tabulate_point(point, task.name))
        key, config = ready.study_type.cache_key(ready), ready.point.config
        manifest = store.computations()[-1][1]
        notes[task.name] = {
            "version": task.version, "content": key.point, "policies": dict(key.policies),
            "known": sorted(known), "seeds": config.num_seeds, "horizon": config.horizon,
            "first_seed": config.first_seed,
            "by": manifest["versions"] | {"machine": str(manifest["machine"])},
        }  # fmt: skip
    return Board(pl.concat(rows), notes)
