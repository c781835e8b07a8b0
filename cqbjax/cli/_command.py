"""Run a command on a configuration or on plain arguments, and report its errors.

Wrong input causes one sentence on the error stream and status 2; Ctrl-C causes two lines and status
130. Commands that run studies or prepare data take overrides `key=value`, which Hydra composes
(`run_configured`); those that read files and folders take arguments (`run_plain`).
"""

import argparse
import contextlib
import gc
import os
import re
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
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from cqbjax.cli import _compose, _help, end_quietly
from cqbjax.core.inputs import suggest_names
from cqbjax.experiments import validation
from cqbjax.experiments.configs import CONF
from cqbjax.experiments.grid import Job

# The status of a command that left out a part of its work: a point, a study, a page.
SOME_LEFT_OUT = 3
# The status of an interrupted command, as in a shell.
INTERRUPTED = 130

# Keys that name folders; an error of a file below such a folder names the key too.
FOLDERS = ("results_dir", "data_dir", "cache_dir")

# The number of new objects after which Python looks for unreachable cycles; its default is 700.
# Imports and tracing create objects that stay, and scanning them took a tenth of a study's start.
_GC_THRESHOLD = 50_000

# Whether Ctrl-C was pressed: an interrupted compiler may raise an error of its own instead.
_interrupted = threading.Event()


class Arguments(argparse.ArgumentParser):
    """Parses a command's plain arguments; a wrong one is a ValueError."""

    def error(self, message: str) -> NoReturn:
        """Raise, where argparse would print the usage."""
        raise ValueError(f"{message}; --help lists the arguments")


@end_quietly()
def run_plain(task: Callable[[argparse.Namespace], Any], arguments: Arguments) -> None:
    """Run a command on the arguments of the command line.

    Raises:
        SystemExit: as in `run_configured`.
    """
    with report_errors():
        # A stored study may have a user-defined type.
        _add_current_folder()
        task(arguments.parse_args())


@end_quietly()
def run_configured(task: Callable[[Sequence[Job]], Any], folder: Path = CONF) -> None:
    """Run a command on the configurations that the overrides of the command line compose.

    User files (`conf/policy/mine.yaml`, `conf/experiment/mine.yaml`) and modules (`_target_:
    my_policy.MyPolicy`) are found in the current folder.

    Args:
        task: takes the jobs, all of a multirun or the only one, and returns the objective of each
            job if a search runs it.
        folder: folder of the `config.yaml` that the overrides change.

    Raises:
        SystemExit: of status 2, after one sentence, if Hydra or the task rejects the input; of
            status 130 after Ctrl-C.
    """
    # Hydra prints a page for a wrong override; `explain` needs the error alone.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    gc.set_threshold(_GC_THRESHOLD)
    _interrupted.clear()
    signal.signal(signal.SIGINT, _interrupt)
    _compose.register_plugins(folder)
    if {"-h", "--help"} & {*sys.argv[1:]}:
        print(_help.format_help(folder))
        return
    if folder == CONF:
        sys.argv = ["verbose=true" if word in ("-v", "--verbose") else word for word in sys.argv]
    folders: dict[str, str] = {}

    def run_task(composed: DictConfig | Sequence[Job]) -> Any:
        # Hydra would print a page for an error that leaves the task.
        with report_errors(folders):
            if isinstance(composed, DictConfig):
                now = HydraConfig.get()
                words, name = list(now.overrides.task), str(now.job.config_name)
                composed = _compose.compose_jobs([words], name=name)
            jobs = [_name_study(job) for job in composed]
            folders.update((key, str(jobs[0].config.get(key))) for key in FOLDERS)
            return task(jobs)

    with report_errors():
        _add_current_folder()
        if folder == CONF:
            _compose.check_user_files()
        hydra.main(version_base="1.3", config_path=str(folder), config_name="config")(run_task)()


def _interrupt(number: int, frame: types.FrameType | None) -> None:
    _interrupted.set()
    signal.default_int_handler(number, frame)


def _add_current_folder() -> None:
    """Append the current folder to the module path: last, so that it hides no installed module."""
    try:
        sys.path.append(os.getcwd())
    except FileNotFoundError as error:
        raise ValueError("the current folder does not exist any more: go to another") from error


def _name_study(job: Job) -> Job:
    """Return a job whose `name` is that of its files: for an unnamed study, its settings."""
    for word in job.words:
        if word.startswith("~") and not {*word} & {*"./@"}:
            key = word[1:].partition("=")[0]
            raise ValueError(f"{word}: {key} cannot be left out, a part of it such as ~{key}.x can")
    config = job.config
    if config.name == validation.UNNAMED and not any(w.startswith("name=") for w in job.words):
        spanned = (*job.swept, *config.get("grid", ()))
        name = validation.name_settings(config, job.words, spanned)
        config = config if name == config.name else config.with_values({"name": name})
    name = validation.name_files(config)
    return job._replace(
        config=config if name == config.name else config.with_values({"name": name})
    )


@contextlib.contextmanager
def report_errors(
    folders: Mapping[str, str] = types.MappingProxyType({}),
) -> Iterator[None]:
    """Turn wrong input into a sentence, and Ctrl-C into two lines.

    With CQBJAX_TRACEBACK=1 in the environment the error is raised, to find its origin.

    Args:
        folders: key -> the folder that it names.

    Raises:
        SystemExit: of status 2 after the sentence, or of status 130 after the lines.
    """
    wrong_input = (ValueError, OSError, HydraException, OmegaConfBaseException, yaml.YAMLError)
    try:
        yield
    except (SystemExit, BrokenPipeError):
        raise
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) or _interrupted.is_set():
            # A second Ctrl-C must not begin a traceback.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            program, *words = sys.argv
            if not program.startswith("cqbjax "):
                program = f"python {shlex.quote(program)}"
            print("stopped; what is finished is stored", file=sys.stderr)
            print(f"go on with: {program} {shlex.join(words)}", file=sys.stderr)
            raise SystemExit(INTERRUPTED) from None
        if not isinstance(error, wrong_input) or os.environ.get("CQBJAX_TRACEBACK"):
            raise
        name = getattr(error, "filename", None)
        parents = [Path(name), *Path(name).parents] if isinstance(name, str) else []
        keys = (f"{key}=" for key, folder in folders.items() if Path(folder) in parents)
        print(f"error: {next(keys, '')}{explain(error)}", file=sys.stderr)
        raise SystemExit(2) from None


def explain(error: Exception) -> str:
    """Return an error as one sentence: Hydra, OmegaConf and YAML use several lines."""
    cause, text = error.__cause__, str(error)
    first_line = next((line.strip() for line in text.splitlines() if line.strip()), repr(error))
    if isinstance(error, MissingConfigException):
        group, _, choice = str(error.missing_cfg_file).rpartition("/")
        known = _compose.list_choices(group)
        names = [*known, *(_compose.list_labels() if group == "policy" else ())]
        unknown = f"{group} {choice} is unknown{suggest_names(choice, names, known)}"
        return unknown if known else first_line
    if isinstance(error, OverrideParseException):
        key, _, value = str(error.override).partition("=")
        if not value.isascii() and not {*value} & {*"'[{"}:
            return f"{key}={value} must have its value in quotes of its own: \"{key}='{value}'\""
        return f"{error.override} cannot be read: {first_line}"
    if found := re.match(r"Ambiguous value for argument '(.+)'", text):
        return f"{found[1]} is neither a list, key=[a,b], nor with -m a run for each value"
    if text.startswith("Config group override must be"):
        return _explain_choice()
    found = re.match(r"Could not override '(.+)'", text)
    if found and isinstance(cause, ConfigAttributeError | ConfigKeyError):
        return _explain_key(found[1], cause)
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark:
        mark = error.problem_mark
        return f"{mark.name}, line {mark.line + 1}: {error.problem}"
    if not text and isinstance(cause, Exception):
        return explain(cause)
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    # Hydra names the key in one line, and the problem in the next.
    return " ".join(text.split("\n")[:2]) if first_line.endswith(":") else first_line


def _explain_key(key: str, cause: OmegaConfBaseException) -> str:
    """Describe an unknown key, and list the keys beside it."""
    node = cause.parent_node
    if not isinstance(node, DictConfig):
        return f"{key} is no key; add --cfg job to the command to see all keys"
    names, parent = {str(name) for name in node}, node._get_full_key(None)
    if not parent and "policy" in names:
        names |= {path.name for path in CONF.iterdir() if path.is_dir()}
    known = sorted(name for name in names - {"hydra"} if not name.startswith("_"))
    name = key.removeprefix(f"{parent}.").partition(".")[0]
    return f"{key} is no key{f' of {parent}' if parent else ''}{suggest_names(name, known)}"


def _explain_choice() -> str:
    """Describe which override must choose a file; Hydra does not report it."""
    for word in sys.argv[1:]:
        group, _, value = word.partition("=")
        if (CONF / group).is_dir() and value and not isinstance(yaml.safe_load(value), str | list):
            return f"{word} must choose from {', '.join(_compose.list_choices(group))}"
    return "a group of choices must be a word or a list"
