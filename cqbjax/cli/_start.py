"""How every command starts and ends: on a configuration, or on plain arguments.

What is refused is one sentence on the error stream, and status 2; Ctrl-C is two lines, and status
130. Commands that study or prepare take `key=value` words, which Hydra composes (`start`); those
that take files and folders take arguments (`start_plain`).
"""

import argparse
import contextlib
import gc
import os
import shlex
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import hydra
import yaml
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from cqbjax.cli import _hydra, _multirun
from cqbjax.experiments import resolvers, settings
from cqbjax.experiments.jobs import Job

# The status of a command that ended with a part of its work left out: a point, a study, a page.
SOME_LEFT_OUT = 3
# And of one that Ctrl-C stopped, as a shell has it.
STOPPED = 130

# Keys that name folders, which an error of a file below them names too.
FOLDERS = ("results_dir", "data_dir", "cache_dir")

# New objects at which Python looks for unreachable cycles; 700 by itself. Imports and tracing make
# objects that stay: looking at all of them again and again took a tenth of a study's start.
_COLLECTED_AT = 50_000

# Whether Ctrl-C was pressed: a compiler that it reaches may raise an error of its own instead.
_pressed = threading.Event()


def start(task: Callable[[Sequence[Job]], Any], folder: Path = _hydra.CONF) -> None:
    """Run a command on the configurations that the words of the command line make.

    The user's own choices (`conf/policy/mine.yaml`, `conf/experiment/mine.yaml`) and modules
    (`_target_: my_policy.MyPolicy`) are found in the current folder.

    Args:
        task: takes the jobs: all of a multirun, or the only one. What it returns is a value for
            each where a search wants one.
        folder: where the `config.yaml` is that the words change.

    Raises:
        SystemExit: of status 2, after one sentence, for what Hydra or the task refuses; of status
            130 after Ctrl-C.
    """
    # Hydra's own answer to a wrong word is a page; its error alone is what `sentence` needs.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    gc.set_threshold(_COLLECTED_AT)
    _pressed.clear()
    signal.signal(signal.SIGINT, _press)
    resolvers.register()
    if folder != _hydra.CONF:
        _hydra.offer_multirun()
    _hydra.offer()
    kept: list[Path] = []
    folders: dict[str, str] = {}

    def refusing_task(given: DictConfig | Sequence[Job]) -> Any:
        # Hydra would print its own page for an error that leaves the task.
        with refusing(kept, folders):
            jobs = [_only(given)] if isinstance(given, DictConfig) else given
            jobs = [_named(job) for job in jobs]
            kept.extend(_folders_of(jobs))
            folders.update((key, str(jobs[0].config.get(key))) for key in FOLDERS)
            return task(jobs)

    with refusing(kept):
        # Last, so that no file of the user's hides a module that is installed.
        sys.path.append(_here())
        if folder == _hydra.CONF:
            _hydra.check_own()
        hydra.main(version_base="1.3", config_path=str(folder), config_name="config")(
            refusing_task
        )()


def _press(number: int, frame: types.FrameType | None) -> None:
    _pressed.set()
    signal.default_int_handler(number, frame)


def _here() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError as error:
        raise ValueError("the current folder is not there any more: go to another") from error


def _only(config: DictConfig) -> Job:
    """Return the only job of a command that Hydra has composed.

    Raises:
        ValueError: for one of many, from a launcher that starts them one by one.
    """
    now = HydraConfig.get()
    if now.mode == RunMode.MULTIRUN:
        raise ValueError(
            f"hydra/launcher={now.runtime.choices['hydra/launcher']} starts points one by one, and "
            "here they run together: leave it out; cluster=ray or cluster=slurm spreads them"
        )
    return _multirun.single(config, list(now.overrides.task), str(now.job.config_name))


def _named(job: Job) -> Job:
    """Return a job with the name of its study's files."""
    for word in job.words:
        if word.startswith("~") and not {*word} & {*"./@"}:
            key = word[1:].partition("=")[0]
            raise ValueError(f"{word}: {key} cannot be left out, a part of it such as ~{key}.x can")
    name = settings.stem_of(job.config)
    return job if name == job.config.name else job._replace(config=job.config.at({"name": name}))


def _folders_of(jobs: Sequence[Job]) -> list[Path]:
    """Return where the jobs store what they have finished."""
    names = {(job.config.get("results_dir"), job.config.name) for job in jobs}
    return [Path(root) / "data" / name for root, name in sorted(names) if root]


class Arguments(argparse.ArgumentParser):
    """Reads a command's plain arguments; what it refuses is a ValueError, as everywhere."""

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing how the command is used."""
        raise ValueError(f"{message}; --help says what there is")


def start_plain(task: Callable[[argparse.Namespace], Any], arguments: Arguments) -> None:
    """Run a command on the arguments of the command line.

    Raises:
        SystemExit: as in `start`.
    """
    with refusing():
        # A stored study may be of a kind of the user's own.
        sys.path.append(_here())
        task(arguments.parse_args())


@contextlib.contextmanager
def refusing(
    kept: Sequence[Path] = (), folders: Mapping[str, str] = types.MappingProxyType({})
) -> Iterator[None]:
    """Turn wrong input into a sentence, and Ctrl-C into two lines.

    CQBJAX_TRACEBACK=1 in the environment lets the error through, for whoever looks for its origin.

    Args:
        kept: folders in which finished work stays after Ctrl-C.
        folders: key -> the folder that it names.

    Raises:
        SystemExit: of status 2 after the sentence, or of status 130 after the lines.
    """
    kinds = (ValueError, OSError, HydraException, OmegaConfBaseException, yaml.YAMLError)
    try:
        yield
    except SystemExit:
        raise
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) or _pressed.is_set():
            # Whoever is impatient presses it twice: the second must not begin a traceback.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            print(_stopped(kept), file=sys.stderr)
            raise SystemExit(STOPPED) from None
        if not isinstance(error, kinds) or os.environ.get("CQBJAX_TRACEBACK"):
            raise
        name = getattr(error, "filename", None)
        places = [Path(name), *Path(name).parents] if isinstance(name, str) else []
        keys = (f"{key}=" for key, folder in folders.items() if Path(folder) in places)
        print(f"error: {next(keys, '')}{_hydra.sentence(error)}", file=sys.stderr)
        raise SystemExit(2) from None


def _stopped(kept: Sequence[Path]) -> str:
    """Say what Ctrl-C leaves, and the command that goes on."""
    files = {folder: sum(path.is_file() for path in folder.rglob("*")) for folder in kept}
    there = [
        f"{folder} ({many} {'file' if many == 1 else 'files'})"
        for folder, many in files.items()
        if many
    ]
    left = f"kept: {', '.join(there)}" if there else "nothing was stored yet"
    words = sys.argv[0].split() if sys.argv[0].startswith("cqbjax ") else ["python", sys.argv[0]]
    return f"stopped; {left}\ngo on with: {shlex.join([*words, *sys.argv[1:]])}"
