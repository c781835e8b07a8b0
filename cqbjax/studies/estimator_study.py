"""A kind of study: how far the running estimates are from the exact minimiser, case by case."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import xarray as xr

from cqbjax.studies import grid
from cqbjax.studies.configs import Composed, Config
from cqbjax.studies.grid import Point, Ready
from cqbjax.studies.kinds import Kind, Shown, Table
from cqbjax.studies.study import Making
from cqbjax.sweeping.progress import Reporter

CASE = ("rounds", "seeds", "every", "alpha_scale")


@dataclasses.dataclass(frozen=True)
class EstimatorError(Kind):
    """The distance of ACQB's estimates from the minimiser, in percent of the radius.

    A case says K, arrival rate, rounds and seeds.

    Attributes:
        case: of a point.
    """

    case: str | None = None

    unread: ClassVar[tuple[str, ...]] = ("*", "kind.case")
    computes: ClassVar[tuple[str, ...] | None] = ("cqbjax.studies.estimator_error",)

    def compose(
        self, points: Sequence[Point], config: Composed, swept: Mapping[str, Any]
    ) -> list[Point]:
        """Return a point for each case; those of prompts need their data."""
        from cqbjax.studies import estimator_error

        del swept
        whole, made = points[0], []
        for name, case in estimator_error.cases(Path(config.data_dir)).items():
            own = {
                "kind.case": name, "K": case.size, "arrival_rate": [case.rate],
                "horizon": case.horizon, "num_seeds": case.seeds, "first_seed": 0,
            }  # fmt: skip
            varied = {**whole.varied, "case": name}
            made.append(Point(name, whole.config.at(own), varied, {}))
        return made

    def ready(self, point: Point, making: Making) -> Ready:
        """Return a point with the policy whose estimates are judged."""
        from cqbjax.studies import estimator_error

        del making
        case = estimator_error.cases(Path(point.config.data_dir))[str(self.case)]
        told = dict(zip(CASE, (case.horizon, case.seeds, case.every, case.scale), strict=True))
        policies = {"acqb": estimator_error.policy_of(case)}
        return Ready(point, case.source, policies, kind=self, told=told)

    def check(self, ready: Ready) -> None:
        """Refuse nothing: cases are as they must be."""

    def measure(self, ready: Ready, progress: Reporter) -> xr.Dataset:
        """Solve exactly at sampled rounds of each run."""
        from cqbjax.studies import estimator_error

        config = ready.point.config
        case = estimator_error.cases(Path(config.data_dir))[str(self.case)]
        shares, where = [], []
        for seed in grid.seeds(config):
            progress.doing("running", str(self.case))
            found = estimator_error.distances_of(case, seed)
            shares.append(estimator_error.percent(found, case.scale))
            where += [(seed, one.round, one.block) for one in found]
            progress.advance(case.horizon)
        names = ("of_seed", "of_round", "of_block")
        data: dict[str, Any] = {
            name: ("distance", of) for name, of in zip(names, np.transpose(where), strict=True)
        }
        data["percent"] = (("policy", "distance"), np.concatenate(shares)[None])
        return xr.Dataset(data, {"policy": list(ready.policies), "distance": range(len(where))})

    def show(self, points: Sequence[xr.Dataset], config: Config) -> Shown:
        """Return the worst and the mean distance of each case."""
        import polars as pl

        rows = []
        for point in points:
            shares = point["percent"].values[0]
            row = {key: point.attrs[key] for key in ("case", *CASE)}
            rows.append(row | {"max_percent": shares.max(), "mean_percent": shares.mean()})
        title = config.title or "Distance from the minimiser, percent of the radius"
        return Shown({"": Table(pl.DataFrame(rows), title)}, {})
