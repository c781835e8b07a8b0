"""A kind of study: the proof's policy-switching queues, and the sentences of Lemma 8 counted."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import xarray as xr

from cqbjax.engine.progress import Reporter
from cqbjax.experiments import grid, study
from cqbjax.experiments.configs import Config
from cqbjax.experiments.grid import Point, Ready
from cqbjax.experiments.kinds import Kind, Shown, Table
from cqbjax.experiments.study import Making
from reproduction.studies import theorems


@dataclasses.dataclass(frozen=True)
class Switching(Kind):
    """All switching queues of each policy on every sample path.

    Attributes:
        block: rounds of the switch that are averaged together.
    """

    block: int = 10

    for_show: ClassVar[tuple[str, ...]] = ("kind.block",)
    computes: ClassVar[tuple[str, ...] | None] = ("reproduction.theory.coupled",)
    unread: ClassVar[tuple[str, ...]] = (*theorems.UNREAD, "record_every")

    def __post_init__(self) -> None:
        """Refuse a block that is none."""
        if type(self.block) is not int or self.block < 1:
            raise ValueError(
                f"kind.block={self.block} must be a whole number of rounds, at least 1"
            )

    def ready(self, point: Point, making: Making) -> Ready:
        """Return a point with its policies but the optimal one, to which the queues switch."""
        return theorems.rivals(super().ready(point, making))

    def check(self, ready: Ready) -> None:
        """Refuse what a point cannot run, and queries of a dataset."""
        super().check(ready)
        theorems.check_source(ready)

    def rounds(self, ready: Ready) -> int:
        """Return the rounds of all T + 1 processes, and of the policies by themselves."""
        config, policies = ready.point.config, len(ready.policies)
        runs = len(config.arrival_rate) * config.num_seeds
        return int(runs * config.horizon * (policies * (config.horizon + 1) + policies + 1))

    def measure(self, ready: Ready, progress: Reporter) -> xr.Dataset:
        """Count the rules of Lemma 8 and what each switch leaves behind, path by path."""
        from reproduction.theory import coupled

        config = ready.point.config
        source, seeds = study.drawn_from(ready), np.asarray(grid.seeds(config))
        by_rate = [
            coupled.measure(
                ready.policies, source, rate, seeds, config.horizon, config.K,
                config.capacity, progress,
            )
            for rate in config.arrival_rate
        ]  # fmt: skip
        return theorems.over_rates(by_rate, config)

    def show(self, points: Sequence[xr.Dataset], config: Config) -> Shown:
        """Return how often each sentence fails, and what a switch leaves behind by its round."""
        import polars as pl

        from reproduction.theory import figures as drawing
        from reproduction.theory import lemma

        title, rules, left = config.title or config.name, [], []
        for rate, point in theorems.cells(points):
            for label in point["policy"].values.tolist():
                one = point.sel(policy=label)
                setting = {"K": point.attrs["K"], "arrival_rate": rate, "policy": label}
                setting["seeds"] = one.sizes["seed"]
                rules.append(theorems.labelled(lemma.rules(one), setting))
                left.append(theorems.labelled(lemma.by_switch(one, self.block), setting))
        by_switch = pl.concat(left)
        tables = {
            "": Table(pl.concat(rules), title),
            "by_switch": Table(by_switch, f"{title}: by_switch", printed=False),
        }
        return Shown(tables, {"": drawing.draw_switching(by_switch, title)})
