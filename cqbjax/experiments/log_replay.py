"""A study type: the replay of a conversation log under several schedules."""

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
from cqbjax.experiments.study_types import StudyOutput
from cqbjax.experiments.sweeps import Sweep
from cqbjax.logs import prepare
from cqbjax.logs.linking import Chains, LinkingRule, singleton_share
from cqbjax.logs.prepare import Log
from cqbjax.logs.replay import ReplaySource, make_replay
from cqbjax.logs.schedules import make_schedule
from cqbjax.policies import OptimalPolicy

# Attributes of a point that describe its chains.
CHAIN_ATTRIBUTES = ("chains_of_several", "linked_by_cosine", "singletons", "load")


@dataclasses.dataclass(frozen=True)
class LogReplay(Sweep):
    """A sweep on the queries of the prepared log, with schedules in addition to its policies.

    Attributes:
        threshold: least cosine at which two first prompts count as the same.
        min_gap: least seconds between a conversation's last response and its retrial.
        among: conversations that a retrial may continue: `open`, all unresolved ones of the user,
            or `adjacent`, the previous one.
        singles: share of chains of length one in the sample.
        schedules: label -> rule, in addition to the policies; None: none.
    """

    threshold: Any = 0.995
    min_gap: Any = 0
    among: Any = "open"
    singles: float = 0.8
    schedules: Mapping[str, str] | None = None

    # Queries come from the log.
    unread_keys: ClassVar[tuple[str, ...]] = (*validation.SYNTHETIC_KEYS, "source")
    # The log decides which seeds draw different arrivals.
    extensible: ClassVar[bool] = False

    def prepare(self, point: GridPoint, factory: Factory) -> PreparedPoint:
        """Link the chains of a point, and return it with its schedules.

        Raises:
            ValueError: no log is prepared, the rule is not valid, or arrivals or dynamics are set.
        """
        config = point.config
        validation.validate_without_dynamics(config, type(self).__name__)
        if config.arrivals != "bernoulli":
            raise ValueError(
                f"arrivals={config.arrivals} is of a sweep: the log determines arrivals"
            )
        if len(config.arrival_rate) != 1:
            raise ValueError("arrival_rate must be one number of chains a slot for a replay")
        rule = LinkingRule(float(self.threshold), float(self.min_gap), self.among)
        rule.check()
        data_dir = Path(config.data_dir)
        log: Log = factory.make_once(data_dir, prepare.load_log)
        chains = prepare.link(log, rule)
        (rate,), seeds = config.arrival_rate, grid.list_seeds(config)
        source = make_replay(log, chains, seeds, rate, int(config.horizon), self.singles)
        lines = [*prepare.describe(log, chains, rule)]
        equal = source.first_equal_run
        if len(seeds) > 1 and len(set(equal)) == 1:
            lines.append(f"num_seeds={len(seeds)}: every seed draws the same arrivals, one is run")
            first = {name: getattr(source, name)[:1] for name in ("seeds", "roots", "counts")}
            source = dataclasses.replace(source, **first)
            config = config.with_values({"num_seeds": 1})
        elif len(set(equal)) < len(seeds):
            i, j = next((i, j) for i, j in enumerate(equal) if i != j)
            raise ValueError(
                f"seeds {seeds[j]} and {seeds[i]} draw the same arrivals: the log has too few "
                f"chains of one for num_seeds={len(seeds)}"
            )
        policies = self.add_schedules(factory.make_each(config.policy), log, chains)
        point = dataclasses.replace(point, config=config)
        prepared = study.assemble_point(point, source, policies, factory, self)
        return prepared._replace(
            attributes=_describe_log(log, chains, source, self.singles), lines=lines
        )

    def add_schedules(
        self, policies: Mapping[str, Any], log: Log, chains: Chains
    ) -> dict[str, Policy]:
        """Return the policies of the replay by label, with the clairvoyant schedule first.

        Args:
            policies: label -> policy.
            log: only a generated log has the probabilities that the rule `informed` reads.
            chains: linked.

        Raises:
            ValueError: a label is used twice, or a rule is unknown.
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
        """Return the output of a sweep; for several linking rules, the gap of each schedule."""
        shown = super().show(points, config)
        if len(points) == 1:
            return shown
        from cqbjax.figures import draw_over_keys

        # These attributes follow from the rule: they are not keys of the grid.
        copies = [one.copy(deep=False) for one in points]
        for one in copies:
            one.attrs = {k: v for k, v in one.attrs.items() if k not in CHAIN_ATTRIBUTES}
        return shown._replace(figures={"": draw_over_keys(copies)})


def _describe_log(log: Log, chains: Chains, source: ReplaySource, singles: float) -> dict[str, Any]:
    """Return the attributes that describe a point's log and its chains."""
    alone, longer = int((chains.lengths == 1).sum()), int((chains.lengths > 1).sum())
    alone = round(alone * singleton_share(chains.lengths, singles))
    load, share = round(source.load, 3), round(alone / (alone + longer), 3)
    chain_values = zip(CHAIN_ATTRIBUTES, (longer, chains.similar, share, load), strict=True)
    named = {"source": log.name, "stand_in": log.proxy_note, "provenance": log.provenance}
    return {**named, "encoder": log.encoder, **dict(chain_values)}
