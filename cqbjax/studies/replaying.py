"""A kind of study: schedules on a log of conversations, linked and replayed under each."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import xarray as xr
from omegaconf import DictConfig

from cqbjax.chains import prepare, rules
from cqbjax.chains.linking import Chains, Rule
from cqbjax.chains.prepare import Log
from cqbjax.chains.replay import replay
from cqbjax.core.labels import OPTIMAL
from cqbjax.core.types import Policy
from cqbjax.policies import Optimal
from cqbjax.studies import grid, settings, study
from cqbjax.studies.grid import Point, Ready
from cqbjax.studies.kinds import Shown, Table
from cqbjax.studies.study import Making
from cqbjax.studies.sweeps import Sweep

# Of a point's chains, shown in its rows of the table.
FOLLOWING = ("chains_of_several", "linked_by_cosine", "load")


@dataclasses.dataclass(frozen=True)
class Replay(Sweep):
    """A sweep whose queries are those of a log, and whose policies are schedules beside its own.

    Attributes:
        source: a shard of a log or a folder of them, from which the log is prepared; None: it is.
        model: of the log's conversations, like the next two read where it is prepared.
        encoder: of first prompts.
        tokens: what a query's length is counted in.
        threshold: least cosine of two first prompts that are taken for the same.
        min_gap: least seconds between a conversation's last response and its retrial.
        among: `open` or `adjacent`: of which conversations a retrial may be.
        singles: share of chains of length one that is kept.
        schedules: label -> rule, beside the policies.
    """

    source: str | None = None
    model: str = prepare.MODEL
    encoder: str = prepare.ENCODER
    tokens: str = "bytes"
    threshold: Any = 0.995
    min_gap: Any = 0
    among: Any = "open"
    singles: float = 0.8
    schedules: Mapping[str, str] = dataclasses.field(default_factory=dict)

    # What the log holds is in the source that is drawn from it, and what schedules hold in them.
    for_show: ClassVar[tuple[str, ...]] = ("kind",)

    @property
    def rule(self) -> Rule:
        """Return the rule by which retrials are linked."""
        return Rule(float(self.threshold), float(self.min_gap), self.among)

    def ready(self, point: Point, making: Making) -> Ready:
        """Link a point's chains, and return it with all that is replayed on them.

        Raises:
            ValueError: the log or the rule is not what it must be, or another world is asked for.
        """
        config, seeds = point.config, grid.seeds(point.config)
        settings.check_plain(config, type(self).__name__)
        if config.arrivals != "bernoulli":
            raise ValueError(f"arrivals={config.arrivals} is of a sweep: a log says who comes when")
        if len(config.arrival_rate) != 1:
            raise ValueError("arrival_rate must be one number of chains a slot for a replay")
        self.rule.check()
        log: Log = making.keep(f"log {config.data_dir} {self.source}", lambda: self._log(config))
        chains = prepare.link(log, self.rule)
        (rate,) = config.arrival_rate
        source = replay(log, chains, seeds, rate, int(config.horizon), self.singles)
        policies = self.scheduled(making.policies(config.policy), log, chains)
        ready = study.ready_of(point, source, policies, making, self)
        lines = prepare.describe(log, chains, self.rule)
        return ready._replace(told=_told(config, log, chains, self.singles), lines=lines)

    def _log(self, config: DictConfig) -> Log:
        """Return the log of a study: prepared from `source` where it is given."""
        data_dir = Path(config.data_dir)
        if self.source is not None:
            source = Path(self.source)
            prepare.prepare(data_dir, source, self.model, self.encoder, self.tokens)
        return prepare.load(data_dir)

    def scheduled(self, policies: Mapping[str, Any], log: Log, chains: Chains) -> dict[str, Policy]:
        """Return what is replayed, by label: the clairvoyant schedule before all others.

        Args:
            policies: label -> policy.
            log: a generated one knows the chances that the rule `informed` needs.
            chains: linked.

        Raises:
            ValueError: a label is taken twice, or there is no such rule.
        """
        chosen = {OPTIMAL: Optimal(), **policies}
        for label, rule in self.schedules.items():
            if label in chosen:
                raise ValueError(
                    f"kind.schedules.{label} has the label of a policy: give it another"
                )
            if rule == "informed" and "planted" not in log.frame.columns:
                continue
            chosen[str(label)] = rules.policy(rule, log, chains, self.singles)
        return chosen

    def show(self, points: Sequence[xr.Dataset], config: DictConfig) -> Shown:
        """Return the table and the curves; of several rules, how far each schedule is behind.

        The paper's numbers stand beside ours though the log may be another: the table says which
        it is.
        """
        from cqbjax.figures import curves, sweeps
        from cqbjax.paper import printed
        from cqbjax.results import tables
        from cqbjax.results.metrics import panels_of

        horizon = min(int(point.attrs["horizon"]) for point in points)
        rounds = sorted({min(int(t), horizon) for t in config.table_rounds})
        made = tables.gap_table(points, rounds, config.compared)
        made = printed.beside(made, {str(one.attrs["source"]): prepare.TITLE for one in points})
        if len(points) == 1:
            figure = curves.draw_curves(points, panels_of(points, config), config.spread)
        else:
            # What follows from a point's rule is no key of the sweep.
            figure = sweeps.draw_over_keys([_without(one, FOLLOWING) for one in points], "gap")
        return Shown({"": Table(made, config.title or config.name)}, {"": figure})


def _told(config: DictConfig, log: Log, chains: Chains, singles: float) -> dict[str, Any]:
    """Return what is said of a point's log and of its chains."""
    longer = chains.lengths[chains.lengths > 1]
    load = config.arrival_rate[0] * (singles + (1 - singles) * float(longer.mean()))
    following = zip(FOLLOWING, (len(longer), chains.similar, round(load, 3)), strict=True)
    return {"source": log.name, "stand_in": log.stand_in, **dict(following)}


def _without(point: xr.Dataset, names: Sequence[str]) -> xr.Dataset:
    """Return a point without some of its attributes."""
    kept = {key: value for key, value in point.attrs.items() if key not in names}
    return point.drop_attrs(deep=False).assign_attrs(kept)
