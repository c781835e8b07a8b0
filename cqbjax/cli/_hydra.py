"""Configurations: where they are, what of the user's own is found, what is made of them.

Here and in `_start.py` and `_multirun.py` is all that knows Hydra, by its public names alone.

`conf/router/knn.yaml`, or such a file of the user's own, is offered as the policies `knn`,
`knn_priority`, `knn_fallback_least_served` and so on: a router, what it does with a retry, and how
it schedules. A file for each would be nine for a router.
"""

import functools
import itertools
import pickle
import pkgutil
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.errors import InstantiationException, MissingConfigException, OverrideParseException
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from cqbjax.experiments import configs, settings
from cqbjax.experiments.configs import CONF, Composed, Config

if TYPE_CHECKING:
    from cqbjax.core.types import Policy
    from cqbjax.offline import Learnt

# A checkout also has the choices of the paper's reproduction, which is not part of the wheel.
SHIPPED = [path for path in (CONF, CONF.parent / "reproduction" / "conf") if path.is_dir()]

# What stands in a router's label, and what it is in `offline.Trained`.
RETRIES = {"": "same"} | {
    f"_{retry}": retry for retry in ("fallback", "posterior", "recall", "cache")
}
SCHEDULES = {"": "oldest", "_least_served": "least_served", "_priority": "joint"}
# The labels of a router in short, for a list of choices.
PAIRED = "[_fallback|_posterior|_recall|_cache][_least_served|_priority]"


def pairings() -> dict[str, tuple[Path, str, str]]:
    """Return by label what is no file of `policy/`: a router's, its retry, its schedule."""
    files = [path for one in _folders() for path in sorted(one.glob("router/*.yaml"))]
    return {
        f"{path.stem}{retry}{schedule}": (path, RETRIES[retry], SCHEDULES[schedule])
        for path, retry, schedule in itertools.product(files, RETRIES, SCHEDULES)
    }


class Pairings(ConfigSource):
    """Offer to Hydra every pairing of the routers; made when it is chosen, for few are."""

    def __init__(self, provider: str, path: str) -> None:
        super().__init__(provider, path)
        self._offered = pairings()

    @staticmethod
    def scheme() -> str:
        """Return how the search path names this source."""
        return "pairings"

    def available(self) -> bool:
        """Return whether there is anything to read."""
        return True

    def is_group(self, config_path: str) -> bool:
        """Tell whether this is a folder of choices."""
        return config_path.rstrip("/") == "policy"

    def is_config(self, config_path: str) -> bool:
        """Tell whether this is a choice."""
        group, _, name = config_path.removesuffix(".yaml").rpartition("/")
        return group == "policy" and name in self._offered

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        """Return the choices of a folder."""
        wanted = results_filter in (None, ObjectType.CONFIG) and self.is_group(config_path)
        return sorted(self._offered) if wanted else []

    def load_config(self, config_path: str) -> ConfigResult:
        """Make the policy of a router, a retry and a schedule."""
        label = Path(config_path).stem
        path, retry, schedule = self._offered[label]
        node = {
            "_target_": "cqbjax.offline.Trained", "router": OmegaConf.load(path), "retry": retry,
            "schedule": schedule, "precision": "${precision}", "recall_by": "${recall_by}",
        }  # fmt: skip
        config = OmegaConf.create({label: node})
        return ConfigResult(self.provider, self.full_path(), config, {"package": None})


def offer_multirun() -> None:
    """Offer the sweeper and the launcher of `-m` to a command configured in another folder."""
    for path in (CONF / "hydra").glob("*/grid.yaml"):
        group, node = f"hydra/{path.parent.name}", OmegaConf.load(path)
        ConfigStore.instance().store("grid", node, group, provider="cqbjax")


@functools.cache
def _own_choices() -> type[ConfigSource]:
    """Return Hydra's source of files, limited to groups that the shipped `conf/` has as well.

    A folder `conf/name/` of the user's would otherwise turn the key `name=` into a choice of files.
    """
    known: Any = Plugins.instance().discover(ConfigSource)
    files: Any = next(one for one in known if one.scheme() == "file")

    class OwnChoices(files):  # a class that Hydra has no public name for
        """The user's own `conf/`."""

        @staticmethod
        def scheme() -> str:
            """Return how the search path names this source."""
            return "own"

        def is_group(self, config_path: str) -> bool:
            """Tell whether this is a folder of choices."""
            plain = "/" not in config_path.rstrip("/")
            return super().is_group(config_path) and not (plain and _is_key(config_path))

        def load_config(self, config_path: str) -> ConfigResult:
            """Read a file."""
            try:
                return super().load_config(config_path)
            except UnicodeDecodeError as error:
                raise ValueError(f"{self.path}/{config_path}.yaml is no text in UTF-8") from error

    return OwnChoices


def _is_key(path: str) -> bool:
    return path != "" and not (CONF / path).is_dir()


class OtherChoices(SearchPathPlugin):
    """Let Hydra find all shipped choices, the pairings, and those of the user's own `conf/`."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Append folders and pairings, for commands that have choices."""
        if str(CONF) not in [one.path for one in search_path.get_path()]:
            return
        for folder in SHIPPED[1:]:
            search_path.append("cqbjax", f"file://{folder}")
        search_path.append("cqbjax", "pairings://")
        own = _own_folder()
        if own is not None:
            search_path.append("own", f"own://{own}")


def offer() -> None:
    """Tell Hydra of both."""
    Plugins.instance().register(Pairings)
    Plugins.instance().register(_own_choices())
    Plugins.instance().register(OtherChoices)


def _own_folder() -> Path | None:
    """Return the `conf/` of the current folder, if it is not a shipped one."""
    own = Path.cwd() / "conf"
    return own if own.is_dir() and own.resolve() not in SHIPPED else None


def check_own() -> None:
    """Refuse a choice of the user's own that has a shipped one's name, and says something else.

    Raises:
        ValueError: naming the file.
    """
    own = _own_folder()
    for path in sorted(own.glob("*/*.yaml")) if own else ():
        for shipped in (folder / path.parent.name / path.name for folder in SHIPPED):
            if shipped.is_file() and shipped.read_bytes() != path.read_bytes():
                raise ValueError(f"{path} has the name of a file of cqbjax: give it another")


def check_typed(words: Sequence[str], configs: Iterable[Composed]) -> None:
    """Refuse what was typed and is read by none of some studies.

    Raises:
        ValueError: naming the key.
    """
    shipped, takers = _shipped()
    settings.check_overrides(words, *configs, shipped=shipped, takers=takers)


@functools.cache
def _shipped() -> tuple[frozenset[str], dict[str, list[str]]]:
    """Return the keys that a study may read itself; and those that it reads through choices alone.

    What a choice reads besides, key -> the choices, is found in the files: a new one is none of a
    list here.
    """
    groups = [path.name for path in CONF.iterdir() if path.is_dir()]
    takers: dict[str, list[str]] = {}
    for path in sorted(CONF.glob("*/**/*.yaml")):
        if path.relative_to(CONF).parts[0] in (*settings.GROUPS, "source"):
            for key in set(re.findall(r"\$\{(\w+)[.}]", path.read_text())) - {*settings.READ_TOO}:
                takers.setdefault(key, []).append(path.stem)
    return frozenset([*map(str, OmegaConf.load(CONF / "config.yaml")), *groups]), takers


def make(node: Config) -> Any:
    """Make an object of its configuration.

    Raises:
        ValueError: naming the class, if there is no such one or it has no such argument.
        Exception: of an object of this package, or its refusal, without Hydra's wrapping.
    """
    try:
        return _object(configs.plain(node))
    except Exception as error:  # of whatever class is made
        cause = error.__cause__ if isinstance(error, InstantiationException) else error
        target = str(node.get("_target_"))
        own = not target.startswith("cqbjax.") and not isinstance(cause, ValueError | OSError)
        if cause and (own or isinstance(cause, ImportError | TypeError)):
            said = " ".join(str(cause).splitlines()[:2]) or type(cause).__name__
            raise ValueError(f"{target} cannot be made: {said}") from error
        raise (cause or error) from None


def _object(values: Any) -> Any:
    """Make what `_target_` names of the rest, inner ones first.

    Hydra makes what has other words of its own, and says which name there is not. It copies a
    configuration so often that all else is made here: a thousand points take a second less.
    """
    if isinstance(values, list):
        return [_object(value) for value in values]
    if not isinstance(values, dict):
        return values
    if "_target_" not in values:
        return {key: _object(value) for key, value in values.items()}
    try:
        target = pkgutil.resolve_name(values["_target_"])
    except (ImportError, AttributeError, ValueError):
        target = None
    if target is None or any(key.startswith("_") and key != "_target_" for key in values):
        return instantiate(OmegaConf.create(values), _convert_="all")
    return target(**{key: _object(value) for key, value in values.items() if key != "_target_"})


def make_policies(nodes: Config) -> "dict[str, Policy | Learnt]":
    """Make each policy by itself: OmegaConf would take a dict of dataclasses for configuration.

    Policies do not change, so the points of a sweep share those of one configuration.
    """
    return {str(label): _made(pickle.dumps(node)) for label, node in nodes.items()}


@functools.lru_cache(4096)
def _made(pickled: bytes) -> Any:
    """Make an object of a configuration without interpolations."""
    return make(pickle.loads(pickled))


def quote(key: str, value: object) -> str:
    """Return `key=value` for Hydra, in whose grammar `,`, `=` and more have another meaning."""
    text = re.sub(r"(\\*)('|$)", lambda end: 2 * end[1] + "\\'" * bool(end[2]), str(value))
    return f"{key}='{text}'"


def first_line(error: Exception) -> str:
    """Return an error's first line; our own errors have no second."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), repr(error))


def sentence(error: Exception) -> str:
    """Say in one line what Hydra, OmegaConf or YAML says in several, and what is allowed."""
    cause = error.__cause__
    if isinstance(error, MissingConfigException):
        group, _, choice = str(error.missing_cfg_file).rpartition("/")
        known = _choices(group)
        return f"{group} {choice} is unknown; choose from {known}" if known else first_line(error)
    if isinstance(error, OverrideParseException):
        key, _, value = str(error.override).partition("=")
        if not value.isascii() and not {*value} & {*"'[{"}:
            return f"{key}={value} must have its value in quotes of its own: \"{key}='{value}'\""
        return f"{error.override} cannot be read: {first_line(error)}"
    ambiguous = re.match(r"Ambiguous value for argument '(.+)'", str(error))
    if ambiguous:
        return f"{ambiguous[1]} is neither a list, key=[a,b], nor with -m a run for each value"
    if str(error).startswith("Config group override must be"):
        return _no_choice()
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
        return sentence(cause)
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
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
    return f"{key} is no key; choose from {_listed(there | groups - {'hydra'})}"


def _no_choice() -> str:
    """Say which word of the command chooses no file, and which there are: Hydra does not."""
    for word in sys.argv[1:]:
        group, _, value = word.partition("=")
        if (CONF / group).is_dir() and value and not isinstance(yaml.safe_load(value), str | list):
            return f"{word} must choose from {_choices(group)}"
    return "a group of choices must be a word or a list"


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
    """Return the folders of choices: those shipped, and the user's own if there is one."""
    own = _own_folder()
    return [*SHIPPED, own] if own else SHIPPED


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(name for name in names if not name.startswith("_")))
