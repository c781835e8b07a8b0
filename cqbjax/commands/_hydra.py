"""All that commands have to do with Hydra: where configurations are, how one is composed and made.

Hydra refuses wrong words by itself; here, and nowhere else, its pages become sentences. No other
room of the package knows Hydra.
"""

import functools
import gc
import os
import pickle
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hydra
import yaml
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.utils import create_automatic_config_search_path
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.errors import (
    HydraException,
    InstantiationException,
    MissingConfigException,
    OverrideParseException,
)
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.types import RunMode
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    OmegaConfBaseException,
)

from cqbjax.commands._pairings import PAIRED, offer_routers
from cqbjax.commands._refusing import first_line, refusing
from cqbjax.studies import resolvers

if TYPE_CHECKING:
    from cqbjax.commands._jobs import Job
    from cqbjax.core.types import Policy
    from cqbjax.offline import Learnt

# A wheel carries the folder inside the package; in a checkout it stands beside the package.
_PACKAGE = Path(__file__).resolve().parents[1]
CONF = next(path for path in (_PACKAGE / "conf", _PACKAGE.parent / "conf") if path.is_dir())

# New objects at which Python looks for unreachable cycles; 700 by itself. Imports and tracing make
# objects that stay: looking at all of them again and again took a tenth of a study's start.
_COLLECTED_AT = 50_000


def start(
    task: Callable[[DictConfig], None],
    folder: Path = CONF,
    together: "Callable[[Sequence[Job]], Sequence[Any]] | None" = None,
) -> None:
    """Run a command on the configuration that the words of the command line make.

    The user's own choices (`conf/policy/mine.yaml`, `conf/experiment/mine.yaml`) and modules
    (`_target_: my_policy.MyPolicy`) are found in the current folder.

    Args:
        task: takes the configuration; the command is called by the name of its module.
        folder: where its `config.yaml` is.
        together: takes all jobs of a multirun, and returns a value for each; None runs the task on
            one after another.

    Raises:
        SystemExit: of status 2, after one sentence, for what Hydra or the task refuses.
    """
    # Hydra's own answer to a wrong word is a page; its error alone is what `_sentence` needs.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    gc.set_threshold(_COLLECTED_AT)
    resolvers.register()
    Plugins.instance().register(OwnChoices)
    # Last, so that no file of the user's hides a module that is installed.
    sys.path.append(os.getcwd())
    refuse = functools.partial(
        refusing, HydraException, OmegaConfBaseException, yaml.YAMLError, sentence=_sentence
    )

    @functools.wraps(task)
    def refusing_task(config: DictConfig) -> None:
        # Hydra would print its own page for an error that leaves the task.
        with refuse():
            task(config)

    if together is not None:
        refusing_task.together = together  # type: ignore[attr-defined]  # BatchLauncher's

    with refuse():
        _check_own()
        offer_policies()
        hydra.main(version_base="1.3", config_path=str(folder), config_name="config")(
            refusing_task
        )()


def loader() -> tuple[ConfigLoaderImpl, DictConfig]:
    """Return Hydra's loader of our configurations, and the configuration of a multirun."""
    resolvers.register()
    offer_policies()
    path = create_automatic_config_search_path(None, None, str(CONF))
    made = ConfigLoaderImpl(config_search_path=path)
    return made, made.load_configuration("config", [], RunMode.MULTIRUN)


def offer_policies() -> list[str]:
    """Offer the policies that are no file: routers by their pairings. Return their labels."""
    return offer_routers(_folders())


class OwnChoices(SearchPathPlugin):
    """Let Hydra find the choices of the user's own `conf/` too, after those that are shipped."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Append the folder, if there is one."""
        own = _own_folder()
        if own is not None:
            search_path.append("own", f"file://{own}")


def _own_folder() -> Path | None:
    """Return the `conf/` of the current folder, if it is not the shipped one."""
    own = Path.cwd() / "conf"
    return own if own.is_dir() and own.resolve() != CONF else None


def _check_own() -> None:
    """Refuse a choice of the user's own that has a shipped one's name, and says something else.

    Raises:
        ValueError: naming the file.
    """
    own = _own_folder()
    for path in sorted(own.glob("*/*.yaml")) if own else ():
        shipped = CONF / path.parent.name / path.name
        if shipped.is_file() and shipped.read_bytes() != path.read_bytes():
            raise ValueError(f"{path} has the name of a file of cqbjax: give it another")


def job_name() -> str:
    """Name a multirun job after its overrides; a single run has no name."""
    now = HydraConfig.get()
    return now.job.override_dirname if now.mode == RunMode.MULTIRUN else ""


def make(node: DictConfig) -> Any:
    """Make an object of its configuration.

    Raises:
        ValueError: naming the class, if there is no such one or it has no such argument.
        Exception: the object's own, without Hydra's wrapping.
    """
    try:
        return instantiate(node, _convert_="all")
    except InstantiationException as error:
        cause = error.__cause__
        if isinstance(cause, ImportError | TypeError):
            said = " ".join(str(cause).splitlines()[:2])
            raise ValueError(f"{node.get('_target_')} cannot be made: {said}") from error
        raise (cause or error) from None


def make_policies(nodes: DictConfig) -> "dict[str, Policy | Learnt]":
    """Make each policy by itself: OmegaConf would take a dict of dataclasses for configuration.

    Policies do not change, so the points of a sweep share those of one configuration.
    """
    plain: Any = OmegaConf.to_container(nodes, resolve=True)
    return {str(label): _made(pickle.dumps(node)) for label, node in plain.items()}


@functools.lru_cache(4096)
def _made(pickled: bytes) -> Any:
    """Make an object of a configuration without interpolations."""
    return make(OmegaConf.create(pickle.loads(pickled)))


def _sentence(error: Exception) -> str:
    """Say in one line what Hydra, OmegaConf or YAML says in several, and what is allowed."""
    cause = error.__cause__
    if isinstance(error, MissingConfigException):
        group, _, choice = str(error.missing_cfg_file).rpartition("/")
        known = _choices(group)
        return f"{group} {choice} is unknown; choose from {known}" if known else first_line(error)
    if isinstance(error, OverrideParseException):
        return f"{error.override} cannot be read: {first_line(error)}"
    ambiguous = re.match(r"Ambiguous value for argument '(.+)'", str(error))
    if ambiguous:
        return f"{ambiguous[1]} is neither a list, key=[a,b], nor with -m a run for each value"
    unknown = re.match(r"Could not override '(.+)'", str(error))
    if unknown and isinstance(cause, ConfigAttributeError | ConfigKeyError):
        return _no_key(unknown[1], cause)
    ours = re.match(r"ValueError raised while resolving interpolation: (.+)", str(error))
    if ours:
        return ours[1]
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark:
        mark = error.problem_mark
        return f"{mark.name}, line {mark.line + 1}: {error.problem}"
    if not str(error) and isinstance(cause, Exception):
        return _sentence(cause)
    said = first_line(error)
    # Hydra says where, then what.
    return " ".join(str(error).split("\n")[:2]) if said.endswith(":") else said


def _no_key(key: str, cause: OmegaConfBaseException) -> str:
    """Say that a key is none, and which there are beside it."""
    around = cause.parent_node
    if not isinstance(around, DictConfig):
        return f"{key} is no key; add --cfg job to the command to see all keys"
    there = {str(name) for name in around} - {"hydra"}
    inside = around._get_full_key(None)
    if inside:
        return f"{key} is no key; {inside} has {_listed(there) or 'none'}"
    groups = {path.name for path in CONF.iterdir() if path.is_dir()} if "policy" in there else set()
    return f"{key} is no key; choose from {_listed(there | groups - {'prepare'})}"


def _choices(group: str) -> str:
    """List the choices of a group, the user's own among them."""
    folders = [folder / group for folder in _folders() if group]
    names = {path.stem for folder in folders for path in folder.glob("*.yaml")}
    if group == "policy":
        names |= {
            f"{path.stem}{PAIRED}" for each in _folders() for path in each.glob("router/*.yaml")
        }
    return _listed(names)


def _folders() -> list[Path]:
    """Return the folders of choices: the shipped one, and the user's own if there is one."""
    own = _own_folder()
    return [CONF, own] if own else [CONF]


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(name for name in names if not name.startswith("_")))
