"""A kind of study: the smallest eigenvalue of V, and what the proof asks of it."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import xarray as xr

from cqbjax.core.pytree import arrays
from cqbjax.engine.progress import Reporter
from cqbjax.engine.spec import choose_records
from cqbjax.experiments import grid, study
from cqbjax.experiments.configs import Config
from cqbjax.experiments.grid import Point, Ready
from cqbjax.experiments.kinds import Kind, Shown, Table
from cqbjax.experiments.study import Making
from cqbjax.policies import Acqb
from reproduction.studies import theorems


@dataclasses.dataclass(frozen=True)
class Eigenvalues(Kind):
    """The smallest eigenvalues of V, of all feedback and of exploration rounds alone."""

    computes: ClassVar[tuple[str, ...] | None] = ("reproduction.theory.eigenvalues",)
    unread: ClassVar[tuple[str, ...]] = theorems.UNREAD

    def ready(self, point: Point, making: Making) -> Ready:
        """Return a point with its policies but the optimal one, which keeps no V."""
        return theorems.rivals(super().ready(point, making))

    def check(self, ready: Ready) -> None:
        """Refuse what a point cannot run, queries of a dataset, and a policy that keeps no V."""
        super().check(ready)
        theorems.check_source(ready)
        for label, policy in ready.policies.items():
            if not isinstance(policy, Acqb):
                raise ValueError(f"policy {label} keeps no V: name ACQB or a relative of it")

    def measure(self, ready: Ready, progress: Reporter) -> xr.Dataset:
        """Measure the smallest eigenvalues of every run."""
        from reproduction.theory import eigenvalues, playing

        config, source = ready.point.config, study.drawn_from(ready)
        every = choose_records(config.horizon, config.record_every).every
        problem, seeds = source.problem(config.K, config.horizon), np.asarray(grid.seeds(config))
        each = {label: arrays(policy) for label, policy in ready.policies.items()}
        by_rate = []
        for rate in config.arrival_rate:
            fixed = each, arrays(source), rate, problem, seeds, every
            run = functools.partial(eigenvalues.measure, *fixed, progress=progress)
            by_rate.append(playing.with_room(config.capacity, config.horizon, run))
            progress.advance(self.rounds(ready) // len(config.arrival_rate))
        made = theorems.over_rates(by_rate, config)
        return made.assign_attrs(parameters=config.parameters, c1=float(config.c1))

    def show(self, points: Sequence[xr.Dataset], config: Config) -> Shown:
        """Return the eigenvalues at the rounds of the table, and drawn over all of them."""
        import polars as pl

        from reproduction.theory import eigenvalues
        from reproduction.theory import figures as drawing

        title, tabulated, drawn = config.title or config.name, [], []
        for rate, point in theorems.cells(points):
            setting = {key: point.attrs[key] for key in ("K", "parameters")} | {
                "arrival_rate": rate
            }
            rounds = [t for t in config.table_rounds if t in point["round"].values]
            tabulated.append(theorems.labelled(eigenvalues.table(point, rounds), setting))
            drawn.append(point)
        figure = drawing.draw_eigenvalues(drawn, title)
        return Shown({"": Table(pl.concat(tabulated), title)}, {"": figure})
