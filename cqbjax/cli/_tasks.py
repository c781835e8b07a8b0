"""The tasks of the arena: which there are, and each as a study that is ready to run.

A task is a file of `conf/arena/`: an ordinary study, on the seeds for tuning. The arena reports
other seeds, `REPORTED` and those after it, which nothing else runs.
"""

import functools
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from cqbjax.cli import _multirun
from cqbjax.cli._hydra import CONF, make, make_policies, quote

if TYPE_CHECKING:
    from cqbjax.experiments.configs import Composed
    from cqbjax.experiments.grid import Ready
    from cqbjax.experiments.manifests import Content
    from cqbjax.results.board import Board

# The first seed that is reported; presets and routers were tuned on 1,000,000 and those after it.
REPORTED = 2_000_000
# A hundredth of a task is no shorter than this, in rounds.
FEWEST_ROUNDS = 20


class Task(NamedTuple):
    """A task of the arena.

    Attributes:
        name: of its file.
        title: in figures and tables.
        version: raised whenever its numbers change.
        says: what it tests.
        prompts: whether its queries are real prompts, in which routers that learn offline run too.
    """

    name: str
    title: str
    version: int
    says: str
    prompts: bool


class Asked(NamedTuple):
    """How tasks are run.

    Attributes:
        seeds: how many; None: all of the task's.
        rounds: the share of its rounds.
        tuning: whether on the seeds for tuning.
        folder: of the results.
        words: others of the command, `key=value`.
    """

    seeds: int | None
    rounds: float
    tuning: bool
    folder: Path
    words: Sequence[str] = ()


class Contestant(NamedTuple):
    """A policy that enters the arena.

    Attributes:
        label: in tables, and the name of its folder.
        labels: those of `conf/policy` that name it: one or none.
        words: those that say what it is where none does.
    """

    label: str
    labels: Sequence[str]
    words: Sequence[str]


class Entry(NamedTuple):
    """A task with the policies that run in it.

    Attributes:
        task: which.
        ready: what runs.
        known: labels of the board's policies that are what would be computed now.
    """

    task: Task
    ready: "Ready"
    known: set[str]


@functools.cache
def listed() -> tuple[Task, ...]:
    """Return the tasks in the order of their names, those on real prompts last."""
    files = sorted(path for path in (CONF / "arena").glob("*.yaml") if path.stem[0] != "_")
    return tuple(sorted(map(_read, files), key=lambda task: task.prompts))


def _read(path: Path) -> Task:
    told = yaml.safe_load(path.read_text())
    prompts = "_prompts" in told["defaults"]
    return Task(path.stem, told["title"], told["version"], comment_of("arena", path.stem), prompts)


def comment_of(group: str, name: str) -> str:
    """Return what the comment on top of a file of the configuration says; empty without either."""
    path = CONF / group / f"{name}.yaml"
    lines = path.read_text().splitlines() if path.is_file() else []
    top = itertools.takewhile(lambda line: line.startswith("#"), lines)
    return " ".join(line[1:].strip() for line in top if not line.startswith("# @package"))


def chosen(names: Sequence[str] | None) -> list[Task]:
    """Return the tasks of these names, all if none is named.

    Raises:
        ValueError: naming one that there is not, and those that there are.
    """
    by_name = {task.name: task for task in listed()}
    for name in names or ():
        if name not in by_name:
            raise ValueError(f"task {name} is unknown; choose from {', '.join(by_name)}")
    return [by_name[name] for name in names or by_name]


def on_prompts() -> list[str]:
    """Return the names of the tasks on real prompts."""
    return [task.name for task in listed() if task.prompts]


def entry(
    task: Task, asked: Asked, contestant: Contestant | None, board: "Board", kept: dict[str, Any]
) -> Entry:
    """Return a task that is checked, with the policies that are to run.

    Args:
        task: which.
        asked: how.
        contestant: who runs; None: all contestants of the task. Random routing, by which scores are
            measured, runs beside where the board does not know it.
        board: what is known of others.
        kept: what was made for other tasks, by its configuration.

    Raises:
        ValueError: it cannot run, in one sentence.
        OSError: its data are not there.
    """
    from cqbjax.results import board as boards
    from cqbjax.results import scores

    if contestant is None:
        config = composed(task, asked, ())
        return Entry(task, _checked(config, kept), set())
    known = set[str]()
    if task.name in board.notes and not asked.tuning:
        whole = _content(composed(task, asked._replace(seeds=None), ()), kept)
        known = boards.verified(board, task.name, whole.point, whole.policies)
    labels = {*contestant.labels, *(() if scores.RAND in known else (scores.RAND,))}
    words = [f"policy=[{','.join(sorted(labels))}]", *contestant.words]
    return Entry(task, _checked(composed(task, asked, words), kept), known)


def composed(task: Task, asked: Asked, policies: Sequence[str]) -> "Composed":
    """Compose a task as it is asked for, with further words."""
    words = [f"arena={task.name}", quote("results_dir", asked.folder), *asked.words, *policies]
    if not asked.tuning:
        words.append(f"first_seed={REPORTED}")
    if asked.seeds is not None:
        words.append(f"num_seeds={asked.seeds}")
    if asked.rounds != 1:
        (whole,) = _multirun.compose([words])
        rounds = round(asked.rounds * whole.config.horizon)
        words.append(f"horizon={max(FEWEST_ROUNDS, rounds)}")
    (job,) = _multirun.compose([words])
    return job.config


def _checked(config: "Composed", kept: dict[str, Any]) -> "Ready":
    """Return the only point of a task, checked."""
    from cqbjax.experiments import kinds

    (ready,) = kinds.checked_points(config, make, make_policies, kept=kept)
    return ready


def _content(config: "Composed", kept: dict[str, Any]) -> "Content":
    """Return what a task's numbers follow from, with all its contestants; nothing is checked."""
    from cqbjax.experiments import grid, kinds
    from cqbjax.experiments.study import Making

    making = Making(make, make_policies, kept)
    (point,) = kinds.of(config, make).compose(grid.compose(config), config, {})
    ready = kinds.ready_at(point, making)
    content: Content = ready.kind.content(ready)
    return content
