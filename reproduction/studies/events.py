"""A kind of study: how often the events hold on which the proofs rest."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import xarray as xr

from cqbjax.core.pytree import arrays
from cqbjax.engine.progress import Reporter
from cqbjax.experiments import grid, study
from cqbjax.experiments.configs import Config
from cqbjax.experiments.grid import Point, Ready
from cqbjax.experiments.kinds import Kind, Shown, Table
from cqbjax.experiments.study import Making
from cqbjax.policies import Acqb
from reproduction.studies import theorems


@dataclasses.dataclass(frozen=True)
class Events(Kind):
    """The events of the proofs, and what a round loses, in every round of every run."""

    computes: ClassVar[tuple[str, ...] | None] = ("reproduction.theory.events",)
    unread: ClassVar[tuple[str, ...]] = (*theorems.UNREAD, "record_every")

    def ready(self, point: Point, making: Making) -> Ready:
        """Return a point with its policies but the optimal one, which believes nothing."""
        return theorems.rivals(super().ready(point, making))

    def check(self, ready: Ready) -> None:
        """Refuse what a point cannot run, and what the events are not defined for."""
        super().check(ready)
        theorems.check_source(ready)
        config = ready.point.config
        if config.parameters != "shared":
            raise ValueError(
                f"parameters={config.parameters} must be shared: the events are Algorithm 1's"
            )
        for label, policy in ready.policies.items():
            plain = isinstance(policy, Acqb) and not (policy.window or policy.exploit_size)
            if not plain or policy.optimism != "thompson":
                raise ValueError(f"policy {label} draws no samples of all it met: name ACQB")

    def measure(self, ready: Ready, progress: Reporter) -> xr.Dataset:
        """Look at every round of every run."""
        from reproduction.theory import events, playing

        config, source = ready.point.config, study.drawn_from(ready)
        problem, seeds = source.problem(config.K, config.horizon), np.asarray(grid.seeds(config))
        each = {label: arrays(policy) for label, policy in ready.policies.items()}
        by_rate = []
        for rate in config.arrival_rate:
            fixed = each, arrays(source), rate, problem, seeds
            run = functools.partial(events.measure, *fixed, progress=progress)
            by_rate.append(playing.with_room(config.capacity, config.horizon, run))
            progress.advance(self.rounds(ready) // len(config.arrival_rate))
        made = theorems.over_rates(by_rate, config)
        kappa, slackness = float(config.kappa), float(config.slackness)
        return made.assign_attrs(kappa=kappa, slackness=slackness)

    def show(self, points: Sequence[xr.Dataset], config: Config) -> Shown:
        """Return shares and means between the rounds of the table."""
        import polars as pl

        from reproduction.theory import events

        tabulated = []
        for rate, point in theorems.cells(points):
            setting = {key: point.attrs[key] for key in ("K", "kappa")} | {"arrival_rate": rate}
            last = int(point["round"].max())
            rounds = sorted({min(int(t), last) for t in config.table_rounds})
            made = events.table(point, rounds, point.attrs["slackness"])
            tabulated.append(theorems.labelled(made, setting))
        return Shown({"": Table(pl.concat(tabulated), config.title or config.name)}, {})
