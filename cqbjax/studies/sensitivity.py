"""How ACQB depends on its constants: one at a time around a preset, and alpha_scale against c1.

A setting is one row of a frame: the constants, whether it is the preset, the time average of
Q - Q* and the cumulative regret with 95% intervals over seeds, and how far it is from the preset,
paired by seed.
"""

import copy
import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import xarray as xr
from omegaconf import DictConfig, OmegaConf

from cqbjax.beliefs import gaussian
from cqbjax.figures.sensitivity import CONSTANTS, MEASURE
from cqbjax.policies import Acqb
from cqbjax.results import summaries
from cqbjax.studies import grid, study
from cqbjax.studies.grid import Point, Ready

# rho weighs the cost in the utilities: another rho is another problem, not another policy.
VALUES: dict[str, tuple[float, ...]] = {
    "alpha_scale": (0.1, 0.2, 0.3, 0.5, 0.7, 1.0),
    "lambda0": (0.3, 1.0, 3.0, 10.0),
    "c1": (0.1, 0.25, 0.5, 1.0),
    "rho": (0.0, 1.0, 2.0, 5.0, 10.0),
    "M": (1, 3, 9, 27),
}
LEAST = {"alpha_scale": 0.0, "lambda0": 1e-9, "c1": 0.0, "rho": 0.0, "M": 1}
SHARED = ("alpha_scale", "lambda0", "c1")  # what studies of any K and rho can be ranked by
OVER = "over_preset"


@dataclasses.dataclass(frozen=True)
class Setting:
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

    def policy(self, kappa: float) -> Acqb:
        """Return ACQB with these constants."""
        return Acqb(
            kappa=kappa, lambda0=self.lambda0, alpha_scale=self.alpha_scale, c1=self.c1,
            num_samples=self.M,
        )  # fmt: skip


class Varied(NamedTuple):
    """A point of the study.

    Attributes:
        ready: of one rho; its policies are settings, by their labels.
        settings: those.
        preset: what they vary, of any rho.
    """

    ready: Ready
    settings: list[Setting]
    preset: Setting


def points(
    config: DictConfig, make: Callable[[DictConfig], Any], swept: Mapping[str, Any]
) -> list[Varied]:
    """Return the points of a study: a rho of each point of its configuration.

    Args:
        config: of the study; `config.sensitivity` maps constants to other values.
        make: makes a source of its configuration.
        swept: key -> value, what tells this configuration from others of its sweep.

    Raises:
        ValueError: in one sentence, for anything out of range.
    """
    varied, sources = [], dict[str, Any]()
    for composed in grid.compose(config, swept):
        plain: Any = OmegaConf.to_container(composed.config)
        preset = preset_of(plain, composed.config.K)
        every = settings(preset, values_of(preset, plain.get("sensitivity") or {}))
        for rho in dict.fromkeys(one.rho for one in every):
            some = [one for one in every if one.rho == rho]
            point = composed if rho is None else _at_rho(composed, rho)
            source = study.source_of(point, make, sources)
            point = grid.settle(point, source)
            policies = {one.label: one.policy(point.config.kappa) for one in some}
            ready = study.ready_of(point, source, policies, make)
            study.check_point(ready)
            varied.append(Varied(ready, some, preset))
    return varied


def _at_rho(point: Point, rho: float) -> Point:
    """Return a point at another weight of the cost, which is another problem."""
    config = copy.deepcopy(point.config)
    OmegaConf.update(config, "source.rho", rho)
    return dataclasses.replace(
        point, name=f"{point.name},rho={rho:g}", config=config, keys={},
        varied={**point.varied, "source.rho": rho},
    )  # fmt: skip


def preset_of(config: Mapping[str, Any], size: int) -> Setting:
    """Return the preset's constants at a K; M is the paper's where the preset names none.

    Raises:
        ValueError: naming a constant that is no number.
    """
    rho, samples = config["source"].get("rho"), config["num_samples"]
    if samples is not None and type(samples) is not int:
        raise ValueError(f"num_samples={samples} must be a whole number or null")
    return Setting(
        _number("alpha_scale", config), _number("lambda0", config), _number("c1", config),
        None if rho is None else _number("rho", config["source"]),
        samples or gaussian.num_samples(size),
    )  # fmt: skip


def _number(key: str, config: Mapping[str, Any]) -> float:
    if type(config[key]) not in (int, float):
        raise ValueError(f"{key}={config[key]} must be a number")
    return float(config[key])


def values_of(preset: Setting, chosen: Mapping[str, Sequence[float]]) -> dict[str, list[Any]]:
    """Return the values of each constant, the preset's among them, increasing.

    Args:
        preset: around which the constants vary.
        chosen: constant -> values in place of `VALUES`; an empty list leaves a constant alone.

    Raises:
        ValueError: for a constant that is none, or a value out of range.
    """
    for key, values in chosen.items():
        if key not in CONSTANTS:
            raise ValueError(f"sensitivity.{key} is unknown; choose from {', '.join(CONSTANTS)}")
        for value in values:
            if not LEAST[key] <= value < float("inf") or (key == "M" and value != int(value)):
                what = "a whole number of at least 1" if key == "M" else "a number of at least 0"
                what = "a number above 0" if key == "lambda0" else what
                raise ValueError(f"sensitivity.{key}={value:g} must be {what}")
    by_key: dict[str, list[Any]] = {}
    for key in CONSTANTS:
        own = getattr(preset, key)
        if own is not None:
            kind = type(own)
            by_key[key] = sorted({own, *(kind(value) for value in chosen.get(key, VALUES[key]))})
    return by_key


def settings(preset: Setting, values: Mapping[str, Sequence[Any]]) -> list[Setting]:
    """Return the preset first, then one constant at a time, then the alpha_scale x c1 grid."""
    alone = [
        dataclasses.replace(preset, **{key: value})
        for key, several in values.items()
        for value in several
    ]
    pairs = itertools.product(values["alpha_scale"], values["c1"])
    grid = [dataclasses.replace(preset, alpha_scale=alpha, c1=c1) for alpha, c1 in pairs]
    return list(dict.fromkeys([preset, *alone, *grid]))


def rows(data: xr.Dataset, chosen: Sequence[Setting], preset: Setting) -> list[dict[str, Any]]:
    """Summarise settings that met the same draws.

    Args:
        data: of a sweep whose labels are those of `chosen`.
        chosen: settings of one rho.
        preset: is compared with, seed by seed, if it is one of them.
    """
    gap = summaries.queue_regret(data).mean("round")
    compared = {MEASURE: gap, "cumulative_regret": data.regret.isel(round=-1)}
    if preset in chosen:
        compared[OVER] = gap - gap.sel(policy=preset.label, drop=True)
    means = {name: summaries.mean_ci(values) for name, values in compared.items()}
    summarised = []
    for rate, one in itertools.product(data.arrival_rate.values, chosen):
        row: dict[str, Any] = {"K": data.attrs["K"], "arrival_rate": float(rate)}
        row["stand_in"] = data.attrs.get("stand_in", "")
        row |= dataclasses.asdict(one) | {"preset": one == preset, "seeds": data.sizes["seed"]}
        for name in (MEASURE, OVER, "cumulative_regret"):
            cell = means[name].sel(arrival_rate=rate, policy=one.label) if name in means else None
            for part, end in (("mean", ""), ("low", "_low"), ("high", "_high")):
                value = None if cell is None else float(cell[part])
                row[f"{name}{end}"] = None if value is None or np.isnan(value) else value
        summarised.append(row)
    return summarised


def frame(summarised: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    """Collect rows, best first within a K and rate; what no row has is left out."""
    made = pl.DataFrame(summarised, infer_schema_length=None)
    empty = {"rho": made["rho"].is_null().all(), "stand_in": (made["stand_in"] == "").all()}
    made = made.drop([key for key, none in empty.items() if none])
    return made.sort("K", "arrival_rate", MEASURE)


def sentences(made: pl.DataFrame) -> list[str]:
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


def ranked(studies: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """Rank settings over several studies, each K and arrival rate a cell of equal weight.

    M and rho stay at the preset's: the paper's M depends on K, and another rho is another problem.

    Args:
        studies: name -> what `frame` returned.

    Returns:
        By setting, least first: `preset`, `mean_ratio`, the geometric mean over cells of the mean
        of Q - Q* divided by the preset's, and that ratio in each cell. Settings that a cell lacks
        are left out.

    Raises:
        ValueError: a study without these columns or without the preset, two presets, or a mean of
            Q - Q* that is not positive, which has no geometric mean.
    """
    by_cell: dict[str, pl.DataFrame] = {}
    for name, made in studies.items():
        by_cell |= _ratios(name, made)
    made, *others = by_cell.values()
    for one in others:
        made = made.join(one, on=[*SHARED, "preset"])
    if made["preset"].sum() != 1:
        raise ValueError("the studies are of different presets, one is needed")
    mean = pl.mean_horizontal(pl.col(key).log() for key in by_cell).exp().alias("mean_ratio")
    said = dict.fromkeys(one["stand_in"][0] for one in studies.values() if "stand_in" in one)
    made = made.select(*SHARED, "preset", mean, *by_cell).sort("mean_ratio")
    return made.with_columns(stand_in=pl.lit("; ".join(said))) if said else made


def _ratios(name: str, made: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """Return cell -> settings with their ratio to the preset, for each K and rate of a study."""
    lacking = {*SHARED, "M", "K", "arrival_rate", "preset", MEASURE} - set(made.columns)
    if lacking:
        raise ValueError(f"{name}: no column {', '.join(sorted(lacking))}, is it a study's?")
    by_cell = {}
    for (size, rate), cell in made.group_by("K", "arrival_rate", maintain_order=True):
        where = f"{name}, K={size}, arrival rate {rate}"
        if cell["preset"].sum() != 1:
            raise ValueError(f"{where}: one row must be preset")
        own = cell.filter("preset").row(0, named=True)
        held = [pl.col(key) == own[key] for key in ("M", "rho") if key in cell.columns]
        cell = cell.filter(*held)
        if not (cell[MEASURE] > 0).all():
            raise ValueError(f"{where}: {MEASURE} must be positive in every row to be ranked")
        key = f"{name} K={size} λ={rate:g}"
        by_cell[key] = cell.select(*SHARED, "preset", (pl.col(MEASURE) / own[MEASURE]).alias(key))
    return by_cell
