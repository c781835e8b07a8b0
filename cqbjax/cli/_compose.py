"""Configurations composed by Hydra: from the shipped files, the user's files, and overrides.

A label is BASE[_RETRY][_SCHEDULE]. The base is a file of `conf/policy` or `conf/router`, or of the
user's; `lints_fallback_least_served` is LinTS with another retry rule and another schedule.

Hydra composes a job in some 70 ms. Jobs that choose the same files differ only in values: their
files are composed once, and the values are set in copies.
"""

import contextlib
import functools
import itertools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import hydra
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus, setup_globals
from hydra.errors import HydraException
from hydra.plugins.config_source import ConfigResult
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf, open_dict

from cqbjax.core.labels import RETRIES, SCHEDULES, split_label
from cqbjax.experiments import configs, validation
from cqbjax.experiments.configs import CONF, ComposedConfig, Config
from cqbjax.experiments.grid import Job

# A checkout also has the configurations of the paper's reproduction, which is not in the wheel.
SHIPPED = [path for path in (CONF, CONF.parent / "reproduction" / "conf") if path.is_dir()]

# Sweepers that hand over all jobs at once, and want no objective.
GRID_SWEEPERS = ("grid", "basic")


def list_bases() -> dict[str, Path]:
    """Return the bases of labels: name -> the file of the policy, or of the router."""
    files = [path for one in list_folders() for path in sorted(one.glob("router/*.yaml"))]
    files += [path for one in list_folders() for path in sorted(one.glob("policy/*.yaml"))]
    return {path.stem: path for path in files}


def list_labels() -> list[str]:
    """Return all labels: each base alone, and with each retry rule and schedule."""
    rules = itertools.product(("", *RETRIES), ("", *SCHEDULES))
    endings = ["".join(f"_{rule}" for rule in pair if rule) for pair in rules]
    return [base + ending for base in list_bases() for ending in endings]


def list_folders() -> list[Path]:
    """Return the folders of configurations: the shipped ones, and the user's if there is one."""
    user = find_user_folder()
    return [*SHIPPED, user] if user else SHIPPED


def find_user_folder() -> Path | None:
    """Return the `conf/` of the current folder, unless it is a shipped one."""
    folder = Path.cwd() / "conf"
    return folder if folder.is_dir() and folder.resolve() not in SHIPPED else None


def list_choices(group: str) -> list[str]:
    """Return the choices of a configuration group, the user's included; of labels the bases."""
    folders = [folder / group for folder in list_folders() if group]
    names = {path.stem for folder in folders for path in folder.glob("*.yaml")}
    if group == "policy":
        names |= {*list_bases()}
    return sorted(name for name in names if not name.startswith("_"))


def check_user_files() -> None:
    """Raise if a file of the user has the name of a shipped one, but another content.

    Raises:
        ValueError: naming the file.
    """
    user = find_user_folder()
    for path in sorted(user.glob("*/*.yaml")) if user else ():
        for shipped in (folder / path.parent.name / path.name for folder in SHIPPED):
            if shipped.is_file() and shipped.read_bytes() != path.read_bytes():
                raise ValueError(f"{path} has the name of a file of cqbjax: give it another")


class ExtendedFiles(FileConfigSource):
    """Hydra's source of the user's files, and of policies that have no file.

    The latter are routers, and bases with other rules. Files are limited to groups that the shipped
    `conf/` has too: a folder `conf/name/` of the user would otherwise turn the key `name=` into a
    choice of files.
    """

    def __init__(self, provider: str, path: str) -> None:
        super().__init__(provider, path)
        self._bases = list_bases()

    @staticmethod
    def scheme() -> str:
        """Return the scheme of this source in the search path."""
        return "cqbjax"

    def is_group(self, config_path: str) -> bool:
        """Return whether a path is a configuration group."""
        name = config_path.rstrip("/")
        shipped = (CONF / name).is_dir() or name == "scenario"  # only users have these
        is_key = name and "/" not in name and not shipped
        return name == "policy" or (super().is_group(config_path) and not is_key)

    def is_config(self, config_path: str) -> bool:
        """Return whether a path is a file, or a policy without one."""
        return super().is_config(config_path) or self._split(config_path) is not None

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        """Return the choices of a group."""
        policies = results_filter in (None, ObjectType.CONFIG) and config_path == "policy"
        in_files = super().is_group(config_path)
        files = super().list(config_path, results_filter) if in_files else []
        return [*files, *(list_labels() if policies else [])]

    def load_config(self, config_path: str) -> ConfigResult:
        """Return the configuration of a file or a policy."""
        composed = self._split(config_path)
        if composed is None:
            try:
                return super().load_config(config_path)
            except UnicodeDecodeError as error:
                raise ValueError(f"{self.path}/{config_path}.yaml is no text in UTF-8") from error
        base, rules = composed
        label, path = Path(config_path).stem, self._bases[base]
        config = OmegaConf.load(path)
        if path.parent.name == "router":
            node = {
                "_target_": "cqbjax.offline.TrainedRouter", "router": config,
                "retry": "same", "schedule": "oldest", "precision": "${precision}",
                "recall_by": "${recall_by}", **rules,
            }  # fmt: skip
            config = OmegaConf.create({label: node})
        else:
            plain: Any = OmegaConf.to_container(config)
            defaults = [one.replace(f"@{base}", f"@{label}") for one in plain.get("defaults", ())]
            node = plain.get(base, {})
            # The learner within ACQB-CL is `base`, and that within other contexts is `policy`.
            within = re.search(rf"base/acqb@{label}\.(\w+)", " ".join(defaults))
            (node.setdefault(within[1], {}) if within else node).update(rules)
            defaults = [*(one for one in defaults if one != "_self_"), "_self_"]
            config = OmegaConf.create({"defaults": defaults, label: node})
        return ConfigResult(self.provider, self.full_path(), config, {"package": None})

    def _split(self, config_path: str) -> tuple[str, dict[str, str]] | None:
        """Return the base and the rules of a policy that has no file, or None."""
        group, _, name = config_path.removesuffix(".yaml").rpartition("/")
        base, rules = split_label(name, self._bases)
        has_none = base in self._bases and (rules or self._bases[base].parent.name == "router")
        return (base, rules) if group == "policy" and has_none else None


class ExtendedSearchPath(SearchPathPlugin):
    """Hydra's search path, extended by all shipped folders, composed policies and user files."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Append them, for commands that are configured by `conf/config.yaml`."""
        if str(CONF) not in [one.path for one in search_path.get_path()]:
            return
        for folder in SHIPPED[1:]:
            search_path.append("cqbjax", f"file://{folder}")
        search_path.append("cqbjax", f"cqbjax://{find_user_folder() or CONF}")


def register_plugins(folder: Path = CONF) -> None:
    """Register resolvers and sources with Hydra, for a command configured in this folder."""
    configs.register_resolvers()
    for plugin in (ExtendedFiles, ExtendedSearchPath):
        Plugins.instance().register(plugin)
    for path in (CONF / "hydra").glob("*/grid.yaml") if folder != CONF else ():
        group, node = f"hydra/{path.parent.name}", OmegaConf.load(path)
        ConfigStore.instance().store("grid", node, group, provider="cqbjax")


@contextlib.contextmanager
def initialize_hydra() -> Iterator[None]:
    """Initialise Hydra with the shipped configurations, outside a Hydra command."""
    register_plugins()
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        yield


def check_words(words: Sequence[str], studies: Iterable[ComposedConfig]) -> None:
    """Raise if the key of an override is read by none of the studies.

    Raises:
        ValueError: naming the key.
    """
    shipped, readers = _list_keys()
    validation.validate_overrides(words, *studies, shipped=shipped, readers=readers)


@functools.cache
def _list_keys() -> tuple[frozenset[str], dict[str, list[str]]]:
    """Return the keys that a study may read itself, and key -> the choices that read it."""
    groups = [path.name for path in CONF.iterdir() if path.is_dir()]
    readers: dict[str, list[str]] = {}
    for path in sorted(CONF.glob("*/**/*.yaml")):
        if path.relative_to(CONF).parts[0] in (*validation.GROUPS, "source"):
            for key in set(re.findall(r"\$\{(\w+)[.}]", path.read_text())) - {*validation.READ_TOO}:
                readers.setdefault(key, []).append(path.stem)
    return frozenset(
        [*map(str, OmegaConf.load(CONF / "config.yaml")), *groups, "scenario"]
    ), readers


def launch_jobs(
    task: Callable[[Sequence[Job]], Sequence[Any] | None], config: DictConfig,
    words: Sequence[Sequence[str]],
) -> list[JobReturn]:  # fmt: skip
    """Compose the jobs of a multirun, and call the task on all of them.

    Args:
        task: the task of the command.
        config: configuration of the multirun, with Hydra's node.
        words: overrides of each job.
    """
    setup_globals()
    HydraConfig.instance().set_config(config)
    typed = set(config.hydra.overrides.task)
    searched = config.hydra.runtime.choices["hydra/sweeper"] not in GRID_SWEEPERS
    # A search may hand over a single job: the keys that it sets count as swept nevertheless.
    chosen = {w.partition("=")[0] for job in words for w in job if searched and w not in typed}
    jobs = compose_jobs(words, chosen, config.hydra.job.config_name)
    values = task([job._replace(searched=searched) for job in jobs]) or [None] * len(jobs)
    return [
        JobReturn(
            overrides=job.words, _return_value=value,
            status=JobStatus.FAILED if isinstance(value, Exception) else JobStatus.COMPLETED,
        )
        for job, value in zip(jobs, values, strict=True)
    ]  # fmt: skip


def combine_words(words: Sequence[str]) -> list[list[str]]:
    """Return the overrides of each job of a multirun: all combinations of its keys' values.

    Raises:
        HydraException: an override that cannot be parsed, or that only a search understands.
    """
    by_key: dict[str, list[str]] = {}
    for one in _parse(words):
        key = one.get_key_element()
        if not one.is_sweep_override():
            by_key[key] = [str(one.input_line)]
        elif one.is_discrete_sweep():
            by_key[key] = [f"{key}={value}" for value in one.sweep_string_iterator()]
        else:
            raise HydraException(f"{one.input_line} is for a search: a sweep takes {key}=a,b,c")
    return [list(job) for job in itertools.product(*by_key.values())]


def compose_jobs(
    words: Sequence[Sequence[str]], chosen: Collection[str] = (), name: str = "config"
) -> list[Job]:
    """Compose jobs, with the same result as Hydra, which must be initialised.

    Args:
        words: overrides of each job.
        chosen: keys that count as swept even if the jobs do not differ in them.
        name: name of the file that is composed.

    Raises:
        HydraException: an override that Hydra rejects.
    """
    loader = GlobalHydra.instance().config_loader()
    distinct = list(dict.fromkeys(word for job in words for word in job))
    by_word = dict(zip(distinct, _parse(distinct), strict=True))
    choices = {
        key for key in {one.key_or_group for one in by_word.values()}
        if loader.get_group_options(key) or re.split("[./]", key)[0] == "hydra"
    }  # fmt: skip
    jobs = [{by_word[word].key_or_group: by_word[word] for word in job} for job in words]
    lines = [{key: str(one.input_line) for key, one in job.items()} for job in jobs]
    swept = [
        key for key in dict.fromkeys(key for job in jobs for key in job)
        if key in chosen or len({job.get(key) for job in lines}) > 1
    ]  # fmt: skip
    return [
        Job(
            _compose_job(name, [by_word[word] for word in own], choices),
            {key: validation.to_coordinate(job[key].value()) for key in swept if key in job},
            list(own),
        )
        for job, own in zip(jobs, words, strict=True)
    ]


class Composed(NamedTuple):
    """The configuration of a choice of files, before any value is set.

    Attributes:
        unresolved: the configuration.
        is_list: key that holds no mapping -> whether its value without the experiment is a list.
    """

    unresolved: Config
    is_list: Mapping[str, bool]


# Name of the file, search path and choices of files -> what they compose: a search tries many
# values of the same choices.
_composed: dict[tuple[str, ...], Composed] = {}


def _compose_job(
    name: str, overrides: Sequence[Override], choices: Collection[str]
) -> ComposedConfig:
    """Return the configuration of a job.

    Args:
        name: name of the file that is composed.
        overrides: of the job.
        choices: keys of the overrides that choose a file, or are Hydra's.
    """
    values, words = dict[str, Any](), list[str]()
    for one in overrides:
        key, changes = one.key_or_group, one.type is OverrideType.CHANGE
        if changes and one.package is None and key not in choices:
            values[key] = one.value()
        else:
            words.append(str(one.input_line))
    found = _compose_choices(name, words)
    if values.keys() <= found.is_list.keys():
        unresolved = found.unresolved.with_values(values)
    else:  # Hydra merges a mapping, and reports an unknown key in its own words
        all_words = [str(one.input_line) for one in overrides]
        unresolved = configs.from_omegaconf(hydra.compose(name, all_words)).unresolved
    # Typed keys first, as in a multirun.
    lists = [key for key, value in configs.iterate_leaves(unresolved) if isinstance(value, list)]
    grid = [
        key for key in dict.fromkeys((*values, *lists))
        if key in lists and not found.is_list.get(key, True)
    ]  # fmt: skip
    return ComposedConfig(Config({**unresolved, "grid": grid}))


def _compose_choices(name: str, words: Sequence[str]) -> Composed:
    """Compose a choice of files, cached."""
    loader = GlobalHydra.instance().config_loader()
    key = (name, *(one.full_path() for one in loader.get_sources()), *words)
    if key in _composed:
        return _composed[key]
    config = hydra.compose(name, list(words), return_hydra_config=True)
    chosen = config.hydra.runtime.choices
    with open_dict(config):
        del config["hydra"]
    unresolved = configs.from_omegaconf(config).unresolved
    is_list = {key: isinstance(value, list) for key, value in configs.iterate_leaves(unresolved)}
    if chosen.get("experiment"):
        # Hydra does not report which models an experiment takes: all of them are composed. Policies
        # are left out, since they have no lists.
        fixed = {k: v for k, v in chosen.items() if isinstance(v, str) and k.isidentifier()}
        for group in validation.PAPER_DYNAMICS:
            fixed[group] = f"[{','.join(loader.get_group_options(group))}]"
        del fixed["experiment"]
        fixed["policy"] = "[]"
        plain = hydra.compose("config", [f"{key}={choice}" for key, choice in fixed.items()])
        values = dict(configs.iterate_leaves(configs.to_config(OmegaConf.to_container(plain))))
        # A list in a key that only the experiment has does not span a grid.
        is_list = {key: x and isinstance(values.get(key, []), list) for key, x in is_list.items()}
    is_list |= dict.fromkeys(is_list.keys() & validation.DIMENSIONS, True)
    _composed[key] = Composed(unresolved, is_list)
    return _composed[key]


def _parse(words: Sequence[str]) -> list[Override]:
    parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
    return parser.parse_overrides(list(words))
