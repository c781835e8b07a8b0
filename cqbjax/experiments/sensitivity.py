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

# Least value of a constant, and how a message describes its range.
RANGES = {
    "alpha_scale": (0.0, "a number of at least 0"), "lambda0": (1e-9, "a number above 0"),
    "c1": (0.0, "a number of at least 0"), "rho": (0.0, "a number of at least 0"),
    "M": (1, "a whole number of at least 1"),
}  # fmt: skip
OVER = "over_preset"
# Attribute of a point: the label of the setting around which the others vary.
PRESET = "preset"

# A value of every constant, in the order of `CONSTANTS`; rho is None if the source does not have
# it.
Setting = Mapping[str, Any]


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
        for key, (least, allowed) in RANGES.items():
            values = getattr(self, key)
            if not isinstance(values, list | tuple) or not all(map(is_number, values)):
                raise ValueError(f"kind.{key}={values} must be a list of numbers")
            for value in values:
                if not least <= value < float("inf") or (key == "M" and value != int(value)):
                    raise ValueError(f"kind.{key}={value:g} must be {allowed}")
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
            for rho in self.list_values(preset).get("rho", [None]):
                fixed = ["rho"] if rho in (None, preset["rho"]) else CONSTANTS
                chosen: dict[str, Any] = {f"kind.{key}": [] for key in fixed}
                chosen |= {"first_seed": self.first_seed, "kind.preset": write_label(preset)}
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
        policies = {
            label: Acqb(
                kappa=config.kappa, lambda0=one["lambda0"], alpha_scale=one["alpha_scale"],
                c1=one["c1"], num_samples=one["M"],
            )
            for label, one in self.list_settings(read_preset(config, config.K)).items()
        }  # fmt: skip
        source = factory.make_once(config.source)
        prepared = study.assemble_point(point, source, policies, factory, self)
        return prepared._replace(
            attributes={**study.describe_source(prepared), PRESET: self.preset}
        )

    def list_values(self, preset: Setting) -> dict[str, list[Any]]:
        """Return the values of each constant, with the preset's, in increasing order."""
        return {
            key: sorted({own, *map(type(own), getattr(self, key))})
            for key, own in preset.items() if own is not None
        }  # fmt: skip

    def list_settings(self, preset: Setting) -> dict[str, Setting]:
        """Return settings by label.

        They are the preset, then variations of one constant, then the alpha_scale x c1 grid.
        """
        values = self.list_values(preset)
        changes: list[Setting] = [{key: value} for key in values for value in values[key]]
        pairs = itertools.product(values["alpha_scale"], values["c1"])
        changes += [{"alpha_scale": alpha, "c1": c1} for alpha, c1 in pairs]
        settings = [preset, *({**preset, **changed} for changed in changes)]
        return {write_label(setting): setting for setting in settings}

    def select_rounds(self, config: Config, panels: int) -> None:
        """Return None: all rounds are read, since Q - Q* is averaged over them."""

    def show(self, points: Sequence[xr.Dataset], config: Config) -> StudyOutput:
        """Return the table of settings, best first, and a figure with a panel for each constant."""
        table = tabulate_settings([row for point in points for row in summarise_settings(point)])
        name = config.name.removeprefix(self.prefix)
        caption = f"Settings of ACQB, {name}, {config.num_seeds} seeds from {self.first_seed}"
        figure = draw_sensitivity(table, config.title or name)
        return StudyOutput({"": OutputTable(table, caption)}, {"": figure})


def read_preset(config: Mapping[str, Any], size: int) -> Setting:
    """Return the constants of the preset at a K; M is the paper's if the preset is null.

    Raises:
        ValueError: naming a constant that is not a number.
    """
    samples = config["num_samples"]
    if samples is not None and type(samples) is not int:
        raise ValueError(f"num_samples={samples} must be a whole number or null")
    setting = {key: config[key] for key in ("alpha_scale", "lambda0", "c1")}
    setting["rho"] = config["source"].get("rho")
    for key, value in setting.items():
        if type(value) not in (int, float) and (key, value) != ("rho", None):
            raise ValueError(f"{key}={value} must be a number")
        setting[key] = None if value is None else float(value)
    return {**setting, "M": samples or gaussian.num_samples(size)}


def write_label(setting: Setting) -> str:
    """Return the constants as text, which `summarise_settings` reads."""
    return " ".join(f"{key}={value}" for key, value in setting.items())


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
        constants = (word.split("=") for word in label.split())
        row = {
            "K": data.attrs["K"], "arrival_rate": float(rate),
            "stand_in": data.attrs.get("stand_in", ""),
            **{key: ast.literal_eval(value) for key, value in constants},
            "preset": label == preset, "seeds": data.sizes["seed"],
        }  # fmt: skip
        for name in (MEASURE, OVER, "cumulative_regret"):
            cell = means[name].sel(arrival_rate=rate, policy=label) if name in means else {}
            for part, end in (("mean", ""), ("low", "_low"), ("high", "_high")):
                value = float(cell.get(part, np.nan))
                row[f"{name}{end}"] = None if np.isnan(value) else value
        summarised.append(row)
    return summarised


def tabulate_settings(summarised: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    """Collect rows, best first for each K and rate, without empty columns."""
    table = pl.DataFrame(summarised, infer_schema_length=None)
    empty = {"rho": table["rho"].is_null().all(), "stand_in": (table["stand_in"] == "").all()}
    table = table.drop([key for key, is_empty in empty.items() if is_empty])
    return table.sort("K", "arrival_rate", MEASURE)
