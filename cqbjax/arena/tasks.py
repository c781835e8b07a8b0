"""The tasks of the arena, and each task as a study that is ready to run.

A task is a file of `conf/arena/`: an ordinary study, on the seeds for tuning. The arena reports
other seeds, those from `FIRST_SEED` on, which nothing else uses.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from cqbjax.experiments.configs import CONF, ComposedConfig, Config

if TYPE_CHECKING:
    from cqbjax.experiments.grid import PreparedPoint

# The first reported seed; presets and routers were tuned on the seeds from 1,000,000 on.
FIRST_SEED = 2_000_000
FEWEST_ROUNDS = 20


class Task(NamedTuple):
    """A task of the arena.

    Attributes:
        name: name of its file.
        title: in figures and tables.
        version: raised whenever its numbers change.
        description: what it tests.
        on_prompts: whether its queries are real prompts, so that routers trained offline run too.
        shipped: whether the package has it; another runs only if it is named.
    """

    name: str
    title: str
    version: int
    description: str
    on_prompts: bool
    shipped: bool = True


class Contestant(NamedTuple):
    """A policy that enters the arena.

    Attributes:
        label: in tables, and the name of its folder; of `conf/policy` if there is no `target`.
        target: `module.Class` of a user-defined policy.
    """

    label: str
    target: str | None = None

    def overrides(self, *others: str) -> list[str]:
        """Return the overrides that choose it, and other labels of `conf/policy`."""
        labels = {*others} if self.target else {self.label, *others}
        added = [f"+policy.{self.label}._target_={self.target}"] if self.target else []
        return [f"policy=[{','.join(sorted(labels))}]", *added]


class Request(NamedTuple):
    """A request to run tasks.

    Attributes:
        contestant: the policy that enters; None: all policies of the board.
        tasks: in which tasks.
        seeds: the number of seeds; None: that of the task.
        rounds: the fraction of a task's rounds.
        tuning: whether to run on the seeds for tuning.
        folder: folder of the results.
        words: further overrides, `key=value`.
        values: further values by key.
    """

    contestant: Contestant | None = None
    tasks: Sequence[Task] = ()
    seeds: int | None = None
    rounds: float = 1.0
    tuning: bool = False
    folder: Path = Path()
    words: Sequence[str] = ()
    values: Mapping[str, Any] = MappingProxyType({})


class Composer(NamedTuple):
    """Composes configurations and instantiates them.

    The command line passes these functions, so that this package does not import Hydra.

    Attributes:
        compose: overrides, `key=value` -> configuration.
        make: configuration -> object.
    """

    compose: Callable[[Sequence[str]], ComposedConfig]
    make: Callable[[Config], Any]

    def prepare(
        self, config: ComposedConfig, cache: dict[str, Any] | None = None
    ) -> "PreparedPoint":
        """Return the only point of a task, validated."""
        from cqbjax.experiments import study_types

        (ready,) = study_types.prepare_points(config, self.make, cache=cache)
        return ready


def list_tasks() -> tuple[Task, ...]:
    """Return the tasks by name, those on real prompts last; then those of the current folder."""
    tasks, own = [], Path.cwd() / "conf" / "arena"
    for path in sorted({*(CONF / "arena").glob("[!_]*.yaml"), *own.glob("[!_]*.yaml")}):
        config, shipped = yaml.safe_load(path.read_text()), path.parent == CONF / "arena"
        try:
            on_prompts = "_prompts" in config["defaults"]
            some = path.stem, config["title"], config["version"]
        except (KeyError, TypeError) as error:
            raise ValueError(f"{path}: a task needs defaults, title and version") from error
        tasks.append(Task(*some, _read_top(path), on_prompts, shipped))
    return tuple(sorted(tasks, key=lambda task: (not task.shipped, task.on_prompts)))


def _read_top(path: Path) -> str:
    """Return the comment on top of a file."""
    lines = path.read_text().splitlines()
    top = itertools.takewhile(lambda line: line.startswith("#"), lines)
    return " ".join(line[1:].strip() for line in top if not line.startswith("# @package"))


def select_tasks(names: Sequence[str]) -> list[Task]:
    """Return the tasks of these names, or all that are shipped if no name is given.

    Raises:
        ValueError: an unknown name.
    """
    by_name = {task.name: task for task in list_tasks()}
    for name in names:
        if name not in by_name:
            raise ValueError(f"task {name} is unknown; choose from {', '.join(by_name)}")
    return [by_name[name] for name in names] or [one for one in by_name.values() if one.shipped]


def compose_task(
    task: Task, request: Request, composer: Composer, words: Sequence[str] = ()
) -> ComposedConfig:
    """Compose a task as requested, with further overrides."""
    config = composer.compose([f"arena={task.name}", *request.words, *words])
    values = {"results_dir": str(request.folder), **request.values}
    if not request.tuning:
        values["first_seed"] = FIRST_SEED
    if request.seeds is not None:
        values["num_seeds"] = request.seeds
    if request.rounds != 1:
        values["horizon"] = max(FEWEST_ROUNDS, round(request.rounds * config.horizon))
    return config.with_values(values)
