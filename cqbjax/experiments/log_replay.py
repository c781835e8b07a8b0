"""A kind of study: schedules on a log of conversations, linked and replayed under each."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import xarray as xr

from cqbjax.core.labels import OPTIMAL
from cqbjax.core.types import Policy
from cqbjax.experiments import grid, study, validation
from cqbjax.experiments.configs import Config
from cqbjax.experiments.grid import GridPoint, PreparedPoint
from cqbjax.experiments.study import Factory
from cqbjax.experiments.study_types import OutputTable, StudyOutput
from cqbjax.experiments.sweeps import Sweep
from cqbjax.logs import prepare
from cqbjax.logs.linking import Chains, LinkingRule, singleton_share
from cqbjax.logs.prepare import Log
from cqbjax.logs.replay import ReplaySource, make_replay
from cqbjax.logs.schedules import make_schedule
from cqbjax.policies import OptimalPolicy

# Keys of how a log is prepared, whose values are those of the log that is replayed.
USED = ("model", "encoder", "tokens")
# Of a point's chains, shown in its rows of the table.
FOLLOWING = ("chains_of_several", "linked_by_cosine", "singletons", "load")


@dataclasses.dataclass(frozen=True)
class LogReplay(Sweep):
    """A sweep whose queries are those of a log, and whose policies are schedules beside its own.

    Attributes:
        source: a shard of a log or a folder of them, from which the log is prepared; None: it is.
        model: of the log's conversations, like the next three read where it is prepared from
            `source`; None: the paper's, and without a source those of the log that was prepared.
        encoder: of first prompts, or `none`.
        tokens: what a query's length is counted in.
        embeddings: a file in place of the encoder.
        threshold: least cosine of two first prompts that are taken for the same.
        min_gap: least seconds between a conversation's last response and its retrial.
        among: `open` or `adjacent`: of which conversations a retrial may be.
        singles: share of chains of length one among those that are kept.
        schedules: label -> rule, beside the policies; None: no others.
    """

    source: str | None = None
    model: str | None = None
    encoder: str | None = None
    tokens: str | None = None
    embeddings: str | None = None
    threshold: Any = 0.995
    min_gap: Any = 0
    among: Any = "open"
    singles: float = 0.8
    schedules: Mapping[str, str] | None = None

    # What the log holds is in the source that is drawn from it, and what schedules hold in them.
    display_keys: ClassVar[tuple[str, ...]] = ("kind",)
    # The log decides which seeds draw different arrivals.
    extensible: ClassVar[bool] = False

    @property
    def rule(self) -> LinkingRule:
        """Return the rule by which retrials are linked."""
        return LinkingRule(float(self.threshold), float(self.min_gap), self.among)

    def prepare(self, point: GridPoint, factory: Factory) -> PreparedPoint:
        """Link a point's chains, and return it with all that is replayed on them.

        Raises:
            ValueError: the log or the rule is not what it must be, or another world is asked for.
        """
        config = point.config
        validation.validate_without_dynamics(config, type(self).__name__)
        if config.arrivals != "bernoulli":
            raise ValueError(f"arrivals={config.arrivals} is of a sweep: a log says who comes when")
        if len(config.arrival_rate) != 1:
            raise ValueError("arrival_rate must be one number of chains a slot for a replay")
        self.rule.check()
        if self.encoder == prepare.NONE and self.embeddings is None and self.rule.threshold < 1:
            raise ValueError(
                f"kind.encoder={prepare.NONE} embeds nothing: kind.threshold must be 1"
            )
        name = f"log {config.data_dir} {self.source} {self.embeddings} {self._asked()}"
        log: Log = factory.cache_object(name, lambda: self._log(Path(config.data_dir)))
        chains = prepare.link(log, self.rule)
        (rate,), seeds = config.arrival_rate, grid.list_seeds(config)
        source = make_replay(log, chains, seeds, rate, int(config.horizon), self.singles)
        lines = [*prepare.describe(log, chains, self.rule), *_warn_of_singles(chains, self.singles)]
        used: dict[str, Any] = {
            f"kind.{key}": getattr(log, key) for key in USED if self.source is None
        }
        if len(seeds) > 1 and len(set(source.first_equal_run)) == 1:
            lines.append(f"num_seeds={len(seeds)}: every seed draws the same arrivals, one is run")
            source, used = source.take_first_run(), {**used, "num_seeds": 1}
        elif len(set(source.first_equal_run)) < len(seeds):
            i, j = next((i, j) for i, j in enumerate(source.first_equal_run) if i != j)
            raise ValueError(
                f"seeds {seeds[j]} and {seeds[i]} draw the same arrivals: the log has too few "
                f"chains of one for num_seeds={len(seeds)}"
            )
        policies = self.scheduled(factory.policies(config.policy), log, chains)
        point = dataclasses.replace(point, config=config.at(used))
        ready = study.assemble_point(point, source, policies, factory, self)
        return ready._replace(
            attributes=_describe_log(log, chains, source, self.singles), lines=lines
        )

    def _asked(self) -> dict[str, Any]:
        """Return the keys that were given of those that say how a log is prepared."""
        return {key: value for key in USED if (value := getattr(self, key)) is not None}

    def _log(self, data_dir: Path) -> Log:
        """Return the log of a study: prepared from `source` where it is given.

        Raises:
            ValueError: no source, and the log that was prepared is not the one that is asked for.
        """
        asked = self._asked()
        if self.source is not None:
            own = None if self.embeddings is None else Path(self.embeddings)
            prepare.prepare(data_dir, Path(self.source), embeddings=own, **asked)
        elif self.embeddings is not None:
            raise ValueError("kind.embeddings is read with kind.source alone: leave it out")
        log = prepare.load_log(data_dir)
        for key, value in asked.items():
            if self.source is None and getattr(log, key) != value:
                raise ValueError(
                    f"kind.{key}={value} is not that of the log prepared in {data_dir}, which is "
                    f"{getattr(log, key)}: give kind.source, or leave it out"
                )
        return log

    def scheduled(self, policies: Mapping[str, Any], log: Log, chains: Chains) -> dict[str, Policy]:
        """Return what is replayed, by label: the clairvoyant schedule before all others.

        Args:
            policies: label -> policy.
            log: a generated one knows the chances that the rule `informed` needs.
            chains: linked.

        Raises:
            ValueError: a label is taken twice, or there is no such rule.
        """
        chosen = {OPTIMAL: OptimalPolicy(), **policies}
        for label, rule in (self.schedules or {}).items():
            if label in chosen:
                raise ValueError(
                    f"kind.schedules.{label} has the label of a policy: give it another"
                )
            if rule == "informed" and "satisfaction" not in log.frame.columns:
                continue
            chosen[str(label)] = make_schedule(rule, log, chains, self.singles)
        return chosen

    def show(self, points: Sequence[xr.Dataset], config: Config) -> StudyOutput:
        """Return the table and the curves; of several rules, how far each schedule is behind."""
        from cqbjax.figures import draw_curves, draw_over_keys
        from cqbjax.results import tables
        from cqbjax.results.metrics import list_panels

        horizon = min(int(point.attrs["horizon"]) for point in points)
        rounds = sorted({min(int(t), horizon) for t in config.table_rounds})
        made = tables.gap_table(points, rounds, config.compared)
        if len(points) == 1:
            figure = draw_curves(points, list_panels(points, config), config.spread)
        else:
            # What follows from a point's rule is no key of the sweep.
            figure = draw_over_keys([_drop_attributes(one, FOLLOWING) for one in points], "gap")
        return StudyOutput({"": OutputTable(made, config.title or config.name)}, {"": figure})


def _describe_log(log: Log, chains: Chains, source: ReplaySource, singles: float) -> dict[str, Any]:
    """Return what is said of a point's log and of its chains."""
    alone, longer = _count_chains(chains, singles)
    load, share = round(source.load, 3), round(alone / (alone + longer), 3)
    following = zip(FOLLOWING, (longer, chains.similar, share, load), strict=True)
    named = {"source": log.name, "stand_in": log.proxy_note, "provenance": log.provenance}
    return {**named, "encoder": log.encoder, **dict(following)}


def _count_chains(chains: Chains, singles: float) -> tuple[int, int]:
    """Return how many chains of one are kept, and how many longer ones there are."""
    alone, longer = int((chains.lengths == 1).sum()), int((chains.lengths > 1).sum())
    return round(alone * singleton_share(chains.lengths, singles)), longer


def _warn_of_singles(chains: Chains, singles: float) -> list[str]:
    """Say that there are too few chains of one, where there are."""
    alone, longer = _count_chains(chains, singles)
    wanted = round(longer * singles / (1 - singles))
    if alone >= wanted:
        return []
    return [
        f"singles={singles:g} asks for {wanted:,} chains of one, there are {alone:,}: all are "
        f"kept, {alone / (alone + longer):.0%} of the chains"
    ]


def _drop_attributes(point: xr.Dataset, names: Sequence[str]) -> xr.Dataset:
    """Return a point without some of its attributes."""
    kept = {key: value for key, value in point.attrs.items() if key not in names}
    return point.drop_attrs(deep=False).assign_attrs(kept)
