"""The jobs of a command: what `-m` makes of its words, composed fast, and handed over together.

Hydra composes a job in some 70 ms. Jobs that choose the same files differ in values alone: these
are composed once, and the values set in copies.
"""

import contextlib
import functools
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.utils import JobReturn, JobStatus, setup_globals
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from cqbjax.cli import _hydra
from cqbjax.experiments import configs, resolvers
from cqbjax.experiments.configs import Composed, Config, Template
from cqbjax.experiments.jobs import Job
from cqbjax.experiments.settings import DIMENSIONS, OF_PAPER, as_stored

# Those that hand over all jobs at once, and want no value back.
SWEEPERS = ("grid", "basic")


def launch(
    task: Callable[[Sequence[Job]], Sequence[Any] | None], config: DictConfig,
    words: Sequence[Sequence[str]],
) -> list[JobReturn]:  # fmt: skip
    """Compose jobs, hand them to the task, and return what it returned for each.

    Args:
        task: of the command.
        config: of the multirun, with Hydra's own part.
        words: overrides of each job.
    """
    setup_globals()
    HydraConfig.instance().set_config(config)
    given = set(config.hydra.overrides.task)
    searched = config.hydra.runtime.choices["hydra/sweeper"] not in SWEEPERS
    # A search hands over few jobs at a time: what it chooses is swept though they be one.
    chosen = {w.partition("=")[0] for job in words for w in job if searched and w not in given}
    jobs = compose(words, chosen, config.hydra.job.config_name)
    values = task([job._replace(searched=searched) for job in jobs]) or [None] * len(jobs)
    return [
        JobReturn(
            overrides=job.words, _return_value=value,
            status=JobStatus.FAILED if isinstance(value, Exception) else JobStatus.COMPLETED,
        )
        for job, value in zip(jobs, values, strict=True)
    ]  # fmt: skip


def combinations(words: Sequence[str]) -> list[list[str]]:
    """Return the words of each job of a multirun: all combinations of the values of its keys.

    Raises:
        HydraException: a word that cannot be read, or that only a search can choose from.
    """
    by_key: dict[str, list[str]] = {}
    for one in _read(words):
        key = one.get_key_element()
        if not one.is_sweep_override():
            by_key[key] = [str(one.input_line)]
        elif one.is_discrete_sweep():
            by_key[key] = [f"{key}={value}" for value in one.sweep_string_iterator()]
        else:
            raise HydraException(f"{one.input_line} is for a search: a sweep takes {key}=a,b,c")
    return [list(job) for job in itertools.product(*by_key.values())]


def compose(
    words: Sequence[Sequence[str]], chosen: Collection[str] = (), name: str = "config"
) -> list[Job]:
    """Compose every job, as Hydra would; Hydra must have been initialised.

    Args:
        words: overrides of each job.
        chosen: keys that count as swept even where the jobs do not differ in them.
        name: of the file that is composed.

    Raises:
        HydraException: Hydra's own, for an override that it would refuse.
    """
    composer = _composer(name)
    distinct = list(dict.fromkeys(word for job in words for word in job))
    read = dict(zip(distinct, _read(distinct), strict=True))
    parsed = [[read[word] for word in job] for job in words]
    configs = [composer.compose(job) for job in parsed]
    swept = _swept(parsed, chosen)
    return [
        Job(one, {key: as_stored(override.value()) for key, override in own.items()}, list(job))
        for one, own, job in zip(configs, swept, words, strict=True)
    ]


def single(config: DictConfig, words: Sequence[str], name: str) -> Job:
    """Return the job of a configuration that Hydra has composed of the words."""
    made = configs.of(config)
    made["grid"] = _composer(name).grid(made, _read(words))
    return Job(made, {}, words)


@contextlib.contextmanager
def initialised() -> Iterator[None]:
    """Initialise Hydra with our configurations, where no command does that."""
    resolvers.register()
    _hydra.offer()
    with hydra.initialize_config_dir(str(_hydra.CONF), version_base="1.3"):
        yield


class _Files(NamedTuple):
    """What a choice of files says, before any value is set.

    Attributes:
        template: of the configurations that differ in values.
        scalars: keys with a value that is no list.
        grid: keys with a list, whose value without the experiment is none.
    """

    template: Template
    scalars: frozenset[str]
    grid: Sequence[str]


def _composer(name: str) -> "_Composer":
    """Return the composer of a file: one a process, so that a search composes choices once."""
    sources = GlobalHydra.instance().config_loader().get_sources()
    return _composer_of(name, tuple(one.full_path() for one in sources))


@functools.lru_cache
def _composer_of(name: str, folders: tuple[str, ...]) -> "_Composer":
    del folders
    return _Composer(name)


class _Composer:
    """Composes once what jobs choose, and sets in copies what they set."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loader = GlobalHydra.instance().config_loader()
        self._composed: dict[tuple[str, ...], _Files] = {}
        self._plain: dict[str, bool] = {}

    def compose(self, overrides: Sequence[Override]) -> Composed:
        """Return the configuration of a job, without Hydra's own part."""
        values = {one.key_or_group: one.value() for one in overrides if self._is_plain(one)}
        try:
            config = self._files(overrides).template.at(values)
        except OmegaConfBaseException:
            # What cannot be set is told in Hydra's own words.
            words = [str(one.input_line) for one in overrides]
            config = configs.of(hydra.compose(self._name, words))
        config["grid"] = self.grid(config, overrides)
        return config

    def grid(self, config: Config, overrides: Sequence[Override]) -> list[str]:
        """Return the keys whose list is a grid: those whose value by itself is no list.

        In the order of the words, as in a multirun; then those of the experiment's file.
        """
        files = self._files(overrides)
        given = [one.key_or_group for one in overrides if self._is_plain(one)]
        known = [key for key in dict.fromkeys(given) if key in files.scalars or key in files.grid]
        keys = dict.fromkeys([*known, *files.grid])
        return [key for key in keys if isinstance(configs.select(config, key), list)]

    def _files(self, overrides: Sequence[Override]) -> _Files:
        words = tuple(str(one.input_line) for one in overrides if not self._is_plain(one))
        if words not in self._composed:
            config = hydra.compose(self._name, list(words), return_hydra_config=True)
            choices = config.hydra.runtime.choices
            with open_dict(config):
                del config["hydra"]
            leaves = dict(_leaves(config))
            lists = [key for key, is_list in leaves.items() if is_list and key not in DIMENSIONS]
            grid: list[str] = []
            if lists and choices.get("experiment"):
                plain = dict(_leaves(_without_experiment(choices)))
                grid = [key for key in lists if plain.get(key) is False]
            scalars = frozenset(leaves) - set(lists) - set(DIMENSIONS)
            self._composed[words] = _Files(Template(config), scalars, grid)
        return self._composed[words]

    def _is_plain(self, override: Override) -> bool:
        """Tell whether an override sets a value and chooses no file, and is none of Hydra's own."""
        key = override.key_or_group
        if override.package is not None or override.type is None or override.type.name != "CHANGE":
            return False
        if key not in self._plain:
            files = self._loader.get_group_options(key)
            self._plain[key] = not files and key.split(".")[0].split("/")[0] != "hydra"
        return self._plain[key]


def _without_experiment(choices: Mapping[str, Any]) -> DictConfig:
    """Compose the same choices with no experiment, no policy and every kind of users and service.

    Which of these an experiment takes Hydra does not tell, and policies say no lists.
    """
    kept = {k: v for k, v in choices.items() if isinstance(v, str) and k.isidentifier()}
    options = GlobalHydra.instance().config_loader().get_group_options
    kept = kept | {key: f"[{','.join(options(key))}]" for key in OF_PAPER} | {"policy": "[]"}
    del kept["experiment"]
    return hydra.compose("config", [f"{key}={choice}" for key, choice in kept.items()])


def _leaves(node: DictConfig, inside: str = "") -> Iterator[tuple[str, bool]]:
    """Yield every key that holds no mapping, `a.b.c`, and whether it holds a list."""
    key: Any  # that of a mapping from K is a number
    for key in node:
        missing = OmegaConf.is_missing(node, key) or OmegaConf.is_interpolation(node, key)
        value = None if missing else node[key]
        if isinstance(value, DictConfig):
            yield from _leaves(value, f"{inside}{key}.")
        else:
            yield f"{inside}{key}", OmegaConf.is_list(value)


def _read(words: Sequence[str]) -> list[Override]:
    parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
    return parser.parse_overrides(list(words))


def _swept(
    jobs: Sequence[Sequence[Override]], chosen: Collection[str]
) -> list[dict[str, Override]]:
    """Return, for each job, the overrides in which jobs differ, or that are chosen."""
    named = [{one.key_or_group: one for one in job} for job in jobs]
    keys = dict.fromkeys(key for job in named for key in job)
    differing = [
        key for key in keys
        if key in chosen
        or len({str(job[key].input_line) if key in job else None for job in named}) > 1
    ]  # fmt: skip
    return [{key: job[key] for key in differing if key in job} for job in named]
