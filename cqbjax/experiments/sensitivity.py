"""A study type: how ACQB depends on its constants, on seeds that no reported number uses.

Constants vary one at a time around the preset (alpha_scale, lambda0, c1, rho, M), and alpha_scale
and c1 also together. All floats of a point share one compiled program; each M compiles another;
each rho is a point.

The table has a row for each setting: the constants, whether it is the preset, the time average of
Q - Q* and the cumulative regret with 95% intervals over seeds, and the difference from the preset,
paired by seed.
"""

import ast
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
from cqbjax.experiments import study
from cqbjax.experiments.configs import ComposedConfig, Config
from cqbjax.experiments.grid import GridPoint, PreparedPoint
from cqbjax.experiments.study import Factory
from cqbjax.experiments.study_types import OutputTable, StudyOutput
from cqbjax.experiments.sweeps import Sweep
from cqbjax.figures.sensitivity import CONSTANTS, MEASURE, draw_sensitivity
from cqbjax.policies import Acqb
from cqbjax.results import summaries

LEAST = {"alpha_scale": 0.0, "lambda0": 1e-9, "c1": 0.0, "rho": 0.0, "M": 1}
OVER = "over_preset"
# Attribute of a point: the label of the setting around which the others vary.
PRESET = "preset"


@dataclasses.dataclass(frozen=True)
class AcqbConstants:
    """A value of every constant; rho is None if the source does not have it."""

    alpha_scale: float
    lambda0: float
    c1: float
    rho: float | None
    M: int

    @property
    def label(self) -> str:
        """The constants as text, which `summarise_settings` reads."""
        return " ".join(f"{key}={getattr(self, key)}" for key in CONSTANTS)


@dataclasses.dataclass(frozen=True)
class Sensitivity(Sweep):
    """A sweep whose policies are settings of ACQB; each rho is a point of its own.

    The field of a constant lists its values in addition to the preset's; empty: the preset's only.

    Attributes:
        first_seed: disjoint from the seeds of reported studies.
        preset: its label, stored with each point.
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
        "scale", "queue", "table", "compared",
    )  # fmt: skip
    read_keys: ClassVar[tuple[str, ...]] = ("kappa", "alpha_scale", "lambda0", "c1", "num_samples")

    def __post_init__(self) -> None:
        """Validate the lists of values, and the first seed."""
        for key in CONSTANTS:
            values = getattr(self, key)
            if not isinstance(values, list | tuple) or not all(map(is_number, values)):
                raise ValueError(f"kind.{key}={values} must be a list of numbers")
        if not is_integer(self.first_seed) or not 0 <= self.first_seed < MAX_SEED:
            raise ValueError(f"kind.first_seed={self.first_seed} must be a seed, 0 or more")

    def compose(
        self, points: Sequence[GridPoint], config: ComposedConfig, swept: Mapping[str, Any]
    ) -> list[GridPoint]:
        """Return a point for each rho of each combination of the grid.

        Other constants vary only at the preset's rho.
        """
        composed = []
        for point in points:
            preset = read_preset(point.config, point.config.K)
            values = self.values(preset)
            for rho in values.get("rho", [None]):
                fixed = ["rho"] if rho in (None, preset.rho) else CONSTANTS
                chosen: dict[str, Any] = {f"kind.{key}": [] for key in fixed}
                chosen |= {"first_seed": self.first_seed, "kind.preset": preset.label}
                name, varied = point.name, point.varied
                if rho is not None:  # the weight of the cost defines another problem
                    chosen["source.rho"] = rho
                    name, varied = f"{name},rho={rho:g}", {**varied, "source.rho": rho}
                own = point.config.with_values(chosen)
                composed.append(
                    dataclasses.replace(point, name=name, config=own, keys={}, varied=varied)
                )
        return composed

    def prepare(self, point: GridPoint, factory: Factory) -> PreparedPoint:
        """Return a point whose policies are ACQB with each setting."""
        config = point.config
        source, preset = factory.make_once(config.source), read_preset(config, config.K)
        policies = {
            one.label: Acqb(
                kappa=config.kappa, lambda0=one.lambda0, alpha_scale=one.alpha_scale, c1=one.c1,
                num_samples=one.M,
            )
            for one in list_constants(preset, self.values(preset))
        }  # fmt: skip
        prepared = study.assemble_point(point, source, policies, factory, self)
        return prepared._replace(
            attributes={**study.describe_source(prepared), PRESET: self.preset}
        )

    def values(self, preset: AcqbConstants) -> dict[str, list[Any]]:
        """Return the values of each constant, with the preset's, in increasing order.

        Args:
            preset: its constants.

        Raises:
            ValueError: a value is out of range.
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
        """Return None: all rounds are read, since Q - Q* is averaged over them."""

    def show(self, points: Sequence[xr.Dataset], config: Config) -> StudyOutput:
        """Return the table of settings, best first, and a figure with a panel for each constant."""
        table = tabulate_settings([row for point in points for row in summarise_settings(point)])
        name = config.name.removeprefix(self.prefix)
        caption = f"Settings of ACQB, {name}, {config.num_seeds} seeds from {self.first_seed}"
        figure = draw_sensitivity(table, config.title or name)
        return StudyOutput({"": OutputTable(table, caption)}, {"": figure})


def read_preset(config: Mapping[str, Any], size: int) -> AcqbConstants:
    """Return the constants of the preset at a K; M is the paper's if the preset is null.

    Raises:
        ValueError: naming a constant that is not a number.
    """
    rho, samples = config["source"].get("rho"), config["num_samples"]
    if samples is not None and type(samples) is not int:
        raise ValueError(f"num_samples={samples} must be a whole number or null")
    numbers = {key: config[key] for key in ("alpha_scale", "lambda0", "c1")}
    for key, value in (numbers | ({} if rho is None else {"rho": rho})).items():
        if type(value) not in (int, float):
            raise ValueError(f"{key}={value} must be a number")
    rho = None if rho is None else float(rho)
    alpha, lambda0, c1 = map(float, numbers.values())
    return AcqbConstants(alpha, lambda0, c1, rho, samples or gaussian.num_samples(size))


def list_constants(
    preset: AcqbConstants, values: Mapping[str, Sequence[Any]]
) -> list[AcqbConstants]:
    """Return the preset, then variations of one constant, then the alpha_scale x c1 grid."""
    alone = [
        dataclasses.replace(preset, **{key: value})
        for key, several in values.items()
        for value in several
    ]
    pairs = itertools.product(values["alpha_scale"], values["c1"])
    both = [dataclasses.replace(preset, alpha_scale=alpha, c1=c1) for alpha, c1 in pairs]
    return list(dict.fromkeys([preset, *alone, *both]))


def summarise_settings(data: xr.Dataset) -> list[dict[str, Any]]:
    """Summarise settings that were run on the same random draws.

    Args:
        data: result of a sweep whose policies are settings. If its attribute `preset` is the label
            of one of them, each is compared with it, seed by seed.
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
        constants = (word.split("=") for word in label.split())
        row |= {key: ast.literal_eval(value) for key, value in constants}
        row |= {"preset": label == preset, "seeds": data.sizes["seed"]}
        for name in (MEASURE, OVER, "cumulative_regret"):
            cell = means[name].sel(arrival_rate=rate, policy=label) if name in means else None
            for part, end in (("mean", ""), ("low", "_low"), ("high", "_high")):
                value = None if cell is None else float(cell[part])
                row[f"{name}{end}"] = None if value is None or np.isnan(value) else value
        summarised.append(row)
    return summarised


def tabulate_settings(summarised: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    """Collect rows, best first for each K and rate, without empty columns."""
    table = pl.DataFrame(summarised, infer_schema_length=None)
    empty = {"rho": table["rho"].is_null().all(), "stand_in": (table["stand_in"] == "").all()}
    table = table.drop([key for key, is_empty in empty.items() if is_empty])
    return table.sort("K", "arrival_rate", MEASURE)
