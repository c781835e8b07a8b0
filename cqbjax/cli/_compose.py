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
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus, setup_globals
from hydra.errors import HydraException
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from cqbjax.core.labels import RETRIES, SCHEDULES, split_label
from cqbjax.experiments import configs, validation
from cqbjax.experiments.configs import CONF, ComposedConfig, Config, Template
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
    endings = ["_".join(("", *filter(None, one))) for one in rules]
    return [
        f"{base}{'' if ending == '_' else ending}" for base in list_bases() for ending in endings
    ]


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


class ComposedPolicies(ConfigSource):
    """Hydra's source of policies that have no file: routers, and bases with other rules."""

    def __init__(self, provider: str, path: str) -> None:
        super().__init__(provider, path)
        self._bases = list_bases()

    @staticmethod
    def scheme() -> str:
        """Return the scheme of this source in the search path."""
        return "composed"

    def available(self) -> bool:
        """Return True: the source is always available."""
        return True

    def is_group(self, config_path: str) -> bool:
        """Return whether a path is a configuration group."""
        return config_path.rstrip("/") == "policy"

    def is_config(self, config_path: str) -> bool:
        """Return whether a path is a choice that has no file of its own."""
        group, _, name = config_path.removesuffix(".yaml").rpartition("/")
        if group != "policy":
            return False
        base, rules = split_label(name, self._bases)
        return base in self._bases and bool(rules or self._bases[base].parent.name == "router")

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        """Return the choices of a group."""
        wanted = results_filter in (None, ObjectType.CONFIG) and self.is_group(config_path)
        return list_labels() if wanted else []

    def load_config(self, config_path: str) -> ConfigResult:
        """Return the configuration of a policy."""
        label = Path(config_path).stem
        base, rules = split_label(label, self._bases)
        path = self._bases[base]
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


@functools.cache
def _user_source() -> type[ConfigSource]:
    """Return Hydra's source of files, limited to groups that the shipped `conf/` has too.

    A folder `conf/name/` of the user would otherwise turn the key `name=` into a choice of files.
    """
    known: Any = Plugins.instance().discover(ConfigSource)
    files: Any = next(one for one in known if one.scheme() == "file")

    class UserFiles(files):  # a class that Hydra has no public name for
        """The user's `conf/`."""

        @staticmethod
        def scheme() -> str:
            """Return the scheme of this source in the search path."""
            return "user"

        def is_group(self, config_path: str) -> bool:
            """Return whether a path is a configuration group."""
            name = config_path.rstrip("/")
            shipped = (CONF / name).is_dir() or name == "scenario"  # only users have these
            is_key = name and "/" not in name and not shipped
            return super().is_group(config_path) and not is_key

        def load_config(self, config_path: str) -> ConfigResult:
            """Return the configuration of a file."""
            try:
                return super().load_config(config_path)
            except UnicodeDecodeError as error:
                raise ValueError(f"{self.path}/{config_path}.yaml is no text in UTF-8") from error

    return UserFiles


class ExtendedSearchPath(SearchPathPlugin):
    """Hydra's search path, extended by all shipped folders, composed policies and user files."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Append them, for commands that are configured by `conf/config.yaml`."""
        if str(CONF) not in [one.path for one in search_path.get_path()]:
            return
        for folder in SHIPPED[1:]:
            search_path.append("cqbjax", f"file://{folder}")
        search_path.append("cqbjax", "composed://")
        user = find_user_folder()
        if user is not None:
            search_path.append("user", f"user://{user}")


def register_plugins(folder: Path = CONF) -> None:
    """Register resolvers and sources with Hydra, for a command configured in this folder."""
    configs.register_resolvers()
    for plugin in (ComposedPolicies, _user_source(), ExtendedSearchPath):
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
    composer = _find_composer(name)
    distinct = list(dict.fromkeys(word for job in words for word in job))
    by_word = dict(zip(distinct, _parse(distinct), strict=True))
    parsed = [[by_word[word] for word in job] for job in words]
    composed = [composer.compose(job) for job in parsed]
    by_key = [{one.key_or_group: one for one in job} for job in parsed]
    lines = [{key: str(one.input_line) for key, one in job.items()} for job in by_key]
    swept = [
        key for key in dict.fromkeys(key for job in by_key for key in job)
        if key in chosen or len({job.get(key) for job in lines}) > 1
    ]  # fmt: skip
    return [
        Job(
            config,
            {key: validation.to_coordinate(job[key].value()) for key in swept if key in job},
            list(own),
        )
        for config, job, own in zip(composed, by_key, words, strict=True)
    ]


def convert_job(config: DictConfig, words: Sequence[str], name: str) -> Job:
    """Return the job of a configuration that Hydra has composed from the overrides."""
    converted = configs.from_omegaconf(config)
    converted["grid"] = _find_composer(name).list_grid_keys(converted, _parse(words))
    return Job(converted, {}, words)


class Choices(NamedTuple):
    """The configuration of a choice of files, before any value is set.

    Attributes:
        template: template of the configurations that differ only in values.
        scalars: keys whose value is not a list.
        grid: keys with a list whose value without the experiment is not a list.
    """

    template: Template
    scalars: frozenset[str]
    grid: Sequence[str]


def _find_composer(name: str) -> "JobComposer":
    """Return the composer of a file and search path, cached: a search composes choices once."""
    sources = GlobalHydra.instance().config_loader().get_sources()
    key = (name, *(one.full_path() for one in sources))
    if key not in _composers:
        _composers[key] = JobComposer(name)
    return _composers[key]


_composers: "dict[tuple[str, ...], JobComposer]" = {}


class JobComposer:
    """Composes each choice of files once, and sets the values of jobs in copies."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loader = GlobalHydra.instance().config_loader()
        self._choices: dict[tuple[str, ...], Choices] = {}
        self._keys: dict[str, bool] = {}

    def compose(self, overrides: Sequence[Override]) -> ComposedConfig:
        """Return the configuration of a job, without Hydra's node."""
        values = {one.key_or_group: one.value() for one in overrides if self._sets_value(one)}
        try:
            config = self._compose_choices(overrides).template.with_values(values)
        except OmegaConfBaseException:
            # Hydra reports a value that cannot be set in its own words.
            words = [str(one.input_line) for one in overrides]
            config = configs.from_omegaconf(hydra.compose(self._name, words))
        config["grid"] = self.list_grid_keys(config, overrides)
        return config

    def list_grid_keys(self, config: Config, overrides: Sequence[Override]) -> list[str]:
        """Return the keys whose list spans a grid: their value by itself is not a list.

        They are in the order of the overrides, as in a multirun; those of the experiment's file
        follow.
        """
        choices = self._compose_choices(overrides)
        valued = [one.key_or_group for one in overrides if self._sets_value(one)]
        known = [key for key in valued if key in choices.scalars or key in choices.grid]
        keys = dict.fromkeys([*known, *choices.grid])
        return [key for key in keys if isinstance(configs.select(config, key), list)]

    def _compose_choices(self, overrides: Sequence[Override]) -> Choices:
        words = tuple(str(one.input_line) for one in overrides if not self._sets_value(one))
        if words not in self._choices:
            config = hydra.compose(self._name, list(words), return_hydra_config=True)
            chosen = config.hydra.runtime.choices
            with open_dict(config):
                del config["hydra"]
            leaves = dict(_iterate_leaves(config))
            lists = [key for key in leaves if leaves[key] and key not in validation.DIMENSIONS]
            grid: list[str] = []
            if lists and chosen.get("experiment"):
                plain = dict(_iterate_leaves(_compose_without_experiment(chosen)))
                grid = [key for key in lists if plain.get(key) is False]
            scalars = frozenset(leaves) - set(lists) - set(validation.DIMENSIONS)
            self._choices[words] = Choices(Template(config), scalars, grid)
        return self._choices[words]

    def _sets_value(self, override: Override) -> bool:
        """Return whether an override sets a value, neither choosing a file nor a key of Hydra."""
        key = override.key_or_group
        if override.package is not None or override.type is None or override.type.name != "CHANGE":
            return False
        if key not in self._keys:
            files = self._loader.get_group_options(key)
            self._keys[key] = not files and key.split(".")[0].split("/")[0] != "hydra"
        return self._keys[key]


def _compose_without_experiment(choices: Mapping[str, Any]) -> DictConfig:
    """Compose the same choices without the experiment, and with every user and service model.

    Hydra does not report which models an experiment takes; policies are left out, since they have
    no lists.
    """
    fixed = {k: v for k, v in choices.items() if isinstance(v, str) and k.isidentifier()}
    options = GlobalHydra.instance().config_loader().get_group_options
    models = {key: f"[{','.join(options(key))}]" for key in validation.PAPER_DYNAMICS}
    fixed |= models | {"policy": "[]"}
    del fixed["experiment"]
    return hydra.compose("config", [f"{key}={choice}" for key, choice in fixed.items()])


def _iterate_leaves(node: DictConfig, prefix: str = "") -> Iterator[tuple[str, bool]]:
    """Yield every key that holds no mapping, `a.b.c`, and whether it holds a list."""
    key: Any  # an integer in a mapping from K
    for key in node:
        missing = OmegaConf.is_missing(node, key) or OmegaConf.is_interpolation(node, key)
        value = None if missing else node[key]
        if isinstance(value, DictConfig):
            yield from _iterate_leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", OmegaConf.is_list(value)


def _parse(words: Sequence[str]) -> list[Override]:
    parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
    return parser.parse_overrides(list(words))
