"""The jobs of a multirun: composed fast, and handed to a command together.

Hydra composes a job in some 70 ms. Jobs that choose the same files differ in values alone: these
are composed once, and the values set in copies.
"""

import pickle
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.utils import JobReturn, JobStatus, configure_log, setup_globals
from hydra.types import HydraContext
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

# Those that hand over all jobs at once, and want no value back.
SWEEPERS = (
    "hydra_plugins.cqbjax_batch.BatchSweeper",
    "hydra._internal.core_plugins.basic_sweeper.BasicSweeper",
)


class Job(NamedTuple):
    """One job of a multirun.

    Attributes:
        config: its configuration, as Hydra would compose it.
        swept: the keys in which the jobs differ, each with this job's value.
        words: all of its overrides, `key=value`.
    """

    config: DictConfig
    swept: Mapping[str, Any]
    words: Sequence[str]


def launch(
    context: HydraContext, config: DictConfig, task: Any, words: Sequence[Sequence[str]], first: int
) -> list[JobReturn]:
    """Compose jobs, hand them to `task.together`, and return what it returned for each.

    Args:
        context: Hydra's.
        config: Hydra's own of the multirun.
        task: of the command.
        words: overrides of each job.
        first: number of the first one.
    """
    setup_globals()
    configure_log(config.hydra.hydra_logging, config.hydra.verbose)
    HydraConfig.instance().set_config(config)
    given = set(config.hydra.overrides.task)
    searching = config.hydra.sweeper._target_ not in SWEEPERS
    # A search hands over few jobs at a time: what it chooses is swept though they be one.
    chosen = {w.partition("=")[0] for job in words for w in job if w not in given and searching}
    jobs = compose(context.config_loader, config, words, chosen)  # type: ignore[arg-type]
    values = task.together(jobs, searching)
    return [
        JobReturn(
            overrides=job.words, cfg=job.config, working_dir=".", task_name=str(first + number),
            status=JobStatus.FAILED if isinstance(value, Exception) else JobStatus.COMPLETED,
            _return_value=value,
        )
        for number, (job, value) in enumerate(zip(jobs, values, strict=True))
    ]  # fmt: skip


def compose(
    loader: ConfigLoaderImpl, config: DictConfig, words: Sequence[Sequence[str]],
    chosen: Collection[str] = (),
) -> list[Job]:  # fmt: skip
    """Compose every job of a multirun, as Hydra would.

    Args:
        loader: Hydra's.
        config: of the multirun.
        words: overrides of each job.
        chosen: keys that count as swept even where the jobs do not differ in them.

    Raises:
        HydraException: Hydra's own, for an override that it would refuse.
    """
    composer, parser = _Composer(loader, config), OverridesParser.create()
    distinct = list(dict.fromkeys(word for job in words for word in job))
    read = dict(zip(distinct, parser.parse_overrides(distinct), strict=True))
    parsed = [[read[word] for word in job] for job in words]
    configs = [composer.compose(job) for job in parsed]
    swept = _swept(parsed, chosen)
    return [
        Job(one, {key: _value(override) for key, override in own.items()}, list(job))
        for one, own, job in zip(configs, swept, words, strict=True)
    ]


class _Composer:
    """Composes once what jobs choose, and sets in copies what they set."""

    def __init__(self, loader: ConfigLoaderImpl, config: DictConfig) -> None:
        self._loader, self._config = loader, config
        # Pickled: copied so in a sixth of the time of `copy.deepcopy`.
        self._composed: dict[tuple[str, ...], bytes] = {}
        self._plain: dict[str, bool] = {}

    def compose(self, overrides: Sequence[Override]) -> DictConfig:
        """Return the configuration of a job, without Hydra's own part."""
        chosen = tuple(str(one.input_line) for one in overrides if not self._is_plain(one))
        if chosen not in self._composed:
            self._composed[chosen] = pickle.dumps(self._by_hydra(chosen))
        config: DictConfig = pickle.loads(self._composed[chosen])
        try:
            for one in overrides:
                if self._is_plain(one):
                    OmegaConf.update(config, one.key_or_group, one.value(), merge=True)
        except OmegaConfBaseException:
            # What cannot be set is told in Hydra's own words.
            return self._by_hydra(tuple(str(one.input_line) for one in overrides))
        return config

    def _by_hydra(self, words: Sequence[str]) -> DictConfig:
        composed = self._loader.load_sweep_config(self._config, list(words))
        with open_dict(composed):
            del composed["hydra"]
        return composed

    def _is_plain(self, override: Override) -> bool:
        """Tell whether an override sets a value and chooses no file, and is none of Hydra's own."""
        key = override.key_or_group
        if override.package is not None or override.type is None or override.type.name != "CHANGE":
            return False
        if key not in self._plain:
            files = self._loader.get_group_options(key)
            self._plain[key] = not files and key.split(".")[0].split("/")[0] != "hydra"
        return self._plain[key]


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


def _value(override: Override) -> Any:
    """Return what a job's override says, as a number or a text."""
    value = override.value()
    return value if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
