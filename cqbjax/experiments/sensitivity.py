"""A kind of study: how ACQB depends on its constants, on seeds that no reported number uses.

One at a time around the preset (alpha_scale, lambda0, c1, rho, M), and the grid of alpha_scale and
c1. All floats of a point share one compiled program; each M compiles its own; each rho is a point.

A setting is one row of a frame: the constants, whether it is the preset, the time average of
Q - Q* and the cumulative regret with 95% intervals over seeds, and how far it is from the preset,
paired by seed.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import polars as pl
import xarray as xr

from cqbjax.core.inputs import is_integer, is_number
from cqbjax.core.labels import OPTIMAL
from cqbjax.core.rng import MAX_SEED
from cqbjax.estimation import gaussian
from cqbjax.experiments import grid, study
from cqbjax.experiments.configs import Composed, Config
from cqbjax.experiments.grid import GridPoint, PreparedPoint
from cqbjax.experiments.study import Factory
from cqbjax.experiments.study_types import OutputTable, StudyOutput
from cqbjax.experiments.sweeps import Sweep
from cqbjax.figures.sensitivity import CONSTANTS, MEASURE, draw_sensitivity
from cqbjax.policies import Acqb
from cqbjax.results import summaries

LEAST = {"alpha_scale": 0.0, "lambda0": 1e-9, "c1": 0.0, "rho": 0.0, "M": 1}
OVER = "over_preset"
# An attribute: the label of the setting that the others vary.
PRESET = "preset"


@dataclasses.dataclass(frozen=True)
class AcqbConstants:
    """One value of every constant; rho is None where the source has none."""

    alpha_scale: float
    lambda0: float
    c1: float
    rho: float | None
    M: int

    @property
    def label(self) -> str:
        """Name the setting."""
        return " ".join(f"{key}={getattr(self, key)}" for key in CONSTANTS)

    @classmethod
    def of(cls, label: str) -> "AcqbConstants":
        """Return the setting of a label."""
        said = dict(word.split("=") for word in label.split())
        rho = None if said["rho"] == "None" else float(said["rho"])
        alpha, lambda0, c1 = (float(said[key]) for key in ("alpha_scale", "lambda0", "c1"))
        return cls(alpha, lambda0, c1, rho, int(said["M"]))

    def policy(self, kappa: float) -> Acqb:
        """Return ACQB with these constants."""
        return Acqb(
            kappa=kappa, lambda0=self.lambda0, alpha_scale=self.alpha_scale, c1=self.c1,
            num_samples=self.M,
        )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Sensitivity(Sweep):
    """A sweep whose policies are settings of ACQB; each rho is a point of its own.

    A field is the values of a constant, beside the preset's own; an empty list leaves it alone.

    Attributes:
        first_seed: far from those that any study reports.
        preset: its label, written at each point.
    """

    alpha_scale: Sequence[float] = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
    lambda0: Sequence[float] = (0.3, 1.0, 3.0, 10.0)
    c1: Sequence[float] = (0.1, 0.25, 0.5, 1.0)
    # rho weighs the cost in the utilities: another rho is another problem, not another policy.
    rho: Sequence[float] = (0.0, 1.0, 2.0, 5.0, 10.0)
    M: Sequence[int] = (1, 3, 9, 27)
    first_seed: int = 1_000_000
    preset: str | None = None

    unread_keys: ClassVar[tuple[str, ...]] = (
        "policy", "policies_by_K", "first_seed", "kind.preset", "figure_policies", "spread",
        "queue", "table", "compared",
    )  # fmt: skip
    read_keys: ClassVar[tuple[str, ...]] = ("kappa", "alpha_scale", "lambda0", "c1", "num_samples")

    def __post_init__(self) -> None:
        """Refuse values that are no lists of numbers, and a seed that is none."""
        for key in CONSTANTS:
            values = getattr(self, key)
            if not isinstance(values, list | tuple) or not all(map(is_number, values)):
                raise ValueError(f"kind.{key}={values} must be a list of numbers")
        if not is_integer(self.first_seed) or not 0 <= self.first_seed < MAX_SEED:
            raise ValueError(f"kind.first_seed={self.first_seed} must be a seed, 0 or more")

    def compose(
        self, points: Sequence[GridPoint], config: Composed, swept: Mapping[str, Any]
    ) -> list[GridPoint]:
        """Return a point for each rho of each combination of the grid.

        At another rho than the preset's no other constant is varied.
        """
        del config, swept
        made = []
        for point in points:
            preset = read_preset(point.config, point.config.K)
            values = self.values(preset)
            for rho in values.get("rho", [None]):
                fixed = ["rho"] if rho in (None, preset.rho) else CONSTANTS
                own = {"first_seed": self.first_seed, "kind.preset": preset.label}
                made.append(_set_rho(point, rho, {**own, **{f"kind.{key}": [] for key in fixed}}))
        return made

    def prepare(self, point: GridPoint, factory: Factory) -> PreparedPoint:
        """Return a point with its settings as policies."""
        config = point.config
        source, preset = factory.make_once(config.source), read_preset(config, config.K)
        policies = {
            one.label: one.policy(config.kappa)
            for one in list_constants(preset, self.values(preset))
        }
        ready = study.assemble_point(
            grid.resolve_rates(point, source), source, policies, factory, self
        )
        return ready._replace(attributes={**study.describe_source(ready), PRESET: self.preset})

    def values(self, preset: AcqbConstants) -> dict[str, list[Any]]:
        """Return the values of each constant, the preset's among them, increasing.

        Args:
            preset: around which the constants vary.

        Raises:
            ValueError: for a value out of range.
        """
        by_key: dict[str, list[Any]] = {}
        for key in CONSTANTS:
            own, chosen = getattr(preset, key), getattr(self, key)
            for value in chosen:
                if not LEAST[key] <= value < float("inf") or (key == "M" and value != int(value)):
                    what = {"M": "a whole number of at least 1", "lambda0": "a number above 0"}
                    raise ValueError(
                        f"kind.{key}={value:g} must be {what.get(key, 'a number of at least 0')}"
                    )
            if own is not None:
                by_key[key] = sorted({own, *(type(own)(value) for value in chosen)})
        return by_key

    def select_rounds(self, config: Config, panels: int) -> None:
        """Return that all rounds are read: Q - Q* is averaged over them."""

    def show(self, points: Sequence[xr.Dataset], config: Config) -> StudyOutput:
        """Return the settings, best first, and the figure of each constant by itself."""
        made = tabulate_settings([row for point in points for row in summarise_settings(point)])
        name = config.name.removeprefix(self.prefix)
        caption = f"Settings of ACQB, {name}, {config.num_seeds} seeds from {self.first_seed}"
        figure = draw_sensitivity(made, config.title or name)
        return StudyOutput({"": OutputTable(made, caption)}, {"": figure}, describe_settings(made))


def _set_rho(point: GridPoint, rho: float | None, chosen: Mapping[str, Any]) -> GridPoint:
    """Return a point at a weight of the cost, with other values.

    Args:
        point: of the study.
        rho: another is another problem; None: the source has none.
        chosen: key -> value.
    """
    if rho is None:
        return dataclasses.replace(point, config=point.config.at(chosen), keys={})
    config = point.config.at({**chosen, "source.rho": rho})
    return dataclasses.replace(
        point, name=f"{point.name},rho={rho:g}", config=config, keys={},
        varied={**point.varied, "source.rho": rho},
    )  # fmt: skip


def read_preset(config: Mapping[str, Any], size: int) -> AcqbConstants:
    """Return the preset's constants at a K; M is the paper's where the preset names none.

    Raises:
        ValueError: naming a constant that is no number.
    """
    rho, samples = config["source"].get("rho"), config["num_samples"]
    if samples is not None and type(samples) is not int:
        raise ValueError(f"num_samples={samples} must be a whole number or null")
    return AcqbConstants(
        _read_number("alpha_scale", config), _read_number("lambda0", config),
        _read_number("c1", config),
        None if rho is None else _read_number("rho", config["source"]),
        samples or gaussian.num_samples(size),
    )  # fmt: skip


def _read_number(key: str, config: Mapping[str, Any]) -> float:
    if type(config[key]) not in (int, float):
        raise ValueError(f"{key}={config[key]} must be a number")
    return float(config[key])


def list_constants(
    preset: AcqbConstants, values: Mapping[str, Sequence[Any]]
) -> list[AcqbConstants]:
    """Return the preset first, then one constant at a time, then the alpha_scale x c1 grid."""
    alone = [
        dataclasses.replace(preset, **{key: value})
        for key, several in values.items()
        for value in several
    ]
    pairs = itertools.product(values["alpha_scale"], values["c1"])
    both = [dataclasses.replace(preset, alpha_scale=alpha, c1=c1) for alpha, c1 in pairs]
    return list(dict.fromkeys([preset, *alone, *both]))


def summarise_settings(data: xr.Dataset) -> list[dict[str, Any]]:
    """Summarise settings that met the same draws.

    Args:
        data: of a sweep whose labels are those of settings; its attribute `preset` is the label
            with which each is compared, seed by seed, if it is one of them.
    """
    gap = summaries.queue_regret(data).mean("round")
    compared = {MEASURE: gap, "cumulative_regret": data.regret.isel(round=-1)}
    labels, preset = data.policy.values.tolist(), data.attrs[PRESET]
    if preset in labels:
        compared[OVER] = gap - gap.sel(policy=preset, drop=True)
    means = {name: summaries.mean_ci(values) for name, values in compared.items()}
    summarised = []
    for rate, label in itertools.product(data.arrival_rate.values, labels):
        if label == OPTIMAL:
            continue
        row: dict[str, Any] = {"K": data.attrs["K"], "arrival_rate": float(rate)}
        row["stand_in"] = data.attrs.get("stand_in", "")
        row |= dataclasses.asdict(AcqbConstants.of(label))
        row |= {"preset": label == preset, "seeds": data.sizes["seed"]}
        for name in (MEASURE, OVER, "cumulative_regret"):
            cell = means[name].sel(arrival_rate=rate, policy=label) if name in means else None
            for part, end in (("mean", ""), ("low", "_low"), ("high", "_high")):
                value = None if cell is None else float(cell[part])
                row[f"{name}{end}"] = None if value is None or np.isnan(value) else value
        summarised.append(row)
    return summarised


def tabulate_settings(summarised: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    """Collect rows, best first within a K and rate; what no row has is left out."""
    made = pl.DataFrame(summarised, infer_schema_length=None)
    empty = {"rho": made["rho"].is_null().all(), "stand_in": (made["stand_in"] == "").all()}
    made = made.drop([key for key, none in empty.items() if none])
    return made.sort("K", "arrival_rate", MEASURE)


def describe_settings(made: pl.DataFrame) -> list[str]:
    """Say what the preset takes and which setting did best, a sentence a K and rate."""
    keys = [key for key in CONSTANTS if key in made.columns]
    lines = []
    for _, cell in made.group_by("K", "arrival_rate", maintain_order=True):
        own = cell.filter("preset").row(0, named=True)
        # Another rho is another problem: its numbers are not rivals of the preset's.
        rivals = cell.filter(pl.col("rho") == own["rho"]) if "rho" in keys else cell
        best = rivals.row(0, named=True)
        takes = ", ".join(f"{key} {own[key]:g}" for key in keys)
        line = f"K={own['K']} λ={own['arrival_rate']:g}: the preset takes {takes}, mean of "
        line += f"Q - Q* {own[MEASURE]:.3g}; "
        apart = [f"{key} {best[key]:g}" for key in keys if best[key] != own[key]]
        if apart:
            line += f"the least is {best[MEASURE]:.3g} with {', '.join(apart)}"
            if best[f"{OVER}_low"] is not None:
                low, high = best[f"{OVER}_low"], best[f"{OVER}_high"]
                line += f", paired difference {best[OVER]:.3g} [{low:.3g}, {high:.3g}]"
        else:
            line += "that is the least"
        lines.append(line)
    return lines
