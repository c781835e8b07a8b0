"""Figures of how ACQB depends on its constants, drawn from the table of a sensitivity study."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from cqbjax.figures.panels import SYMBOLS, VERBATIM, write_numbers

# The columns of the table: the varied constants, and the measured number.
CONSTANTS = ("alpha_scale", "lambda0", "c1", "rho", "M")
MEASURE, MEASURE_LABEL = "mean_queue_regret", "mean queries behind the oracle"


def draw_sensitivity(table: pl.DataFrame, title: str) -> Figure:
    """Draw the time average of Q - Q*: a row for each K and rate, a column for each constant.

    The last column is the grid of alpha_scale and c1. A constant that does not vary has no column.
    """
    cells = [cell for _, cell in table.group_by("K", "arrival_rate", maintain_order=True)]
    keys = [key for key in CONSTANTS if key in table.columns]
    varied = [key for key in keys if any(cell[key].n_unique() > 1 for cell in cells)]
    with matplotlib.rc_context({"font.size": 11, "axes.titlesize": 11}):
        figure = Figure((2.3 * len(varied) + 4.2, 2.5 * len(cells) + 0.9), layout="constrained")
        widths = [1.0] * len(varied) + [1.7]
        axes = figure.subplots(len(cells), len(varied) + 1, squeeze=False, width_ratios=widths)
        for row, cell in zip(axes, cells, strict=True):
            preset = cell.filter("preset").row(0, named=True)
            for panel, key in zip(row, varied, strict=False):
                # Another rho is another problem, with a scale of its own.
                if panel is not row[0] and key != "rho":
                    panel.sharey(row[0])
                _draw_constant(panel, cell, key, preset, keys)
            row[0].set_ylabel(f"K = {preset['K']}, λ = {preset['arrival_rate']:g}\n{MEASURE_LABEL}")
            _draw_grid(row[-1], cell, preset, keys)
        axes[0, -1].set_title(MEASURE_LABEL)
        seeds = table["seeds"].to_list()[0]
        note = f"{title}: mean over {seeds} seeds with 95% interval; orange: the preset"
        if "stand_in" in table.columns:
            note += f"\nData: {table['stand_in'][0]}"
        figure.suptitle(note, **VERBATIM)
    return figure


def _select_variants(
    cell: pl.DataFrame, free: Sequence[str], preset: Mapping[str, Any], keys: Sequence[str]
) -> pl.DataFrame:
    """Return the rows that differ from the preset only in the `free` constants."""
    held = [pl.col(key) == preset[key] for key in keys if key not in free]
    return cell.filter(*held).sort(*free)


def _draw_constant(
    panel: Axes, cell: pl.DataFrame, key: str, preset: Mapping[str, Any], keys: Sequence[str]
) -> None:
    """Draw one constant, its values evenly spaced."""
    line = _select_variants(cell, [key], preset, keys)
    mean = line[MEASURE].to_numpy()
    low, high = (line[f"{MEASURE}_{end}"].cast(pl.Float64).to_numpy() for end in ("low", "high"))
    at, chosen = np.arange(len(mean)), line["preset"].to_numpy()
    bars = np.nan_to_num(np.stack([mean - low, high - mean]))
    panel.errorbar(at, mean, bars, color="#0072B2", marker="o", markersize=4, capsize=2)
    panel.plot(at[chosen], mean[chosen], "o", color="#D55E00", markersize=8, zorder=3)
    labels = [f"{value:g}" for value in line[key]]
    panel.set_xticks(at, labels, rotation=45 if sum(map(len, labels)) > 12 else 0)
    panel.set(xlim=(-0.4, len(mean) - 0.6), xlabel=SYMBOLS.get(key, key))
    panel.spines[["top", "right"]].set_visible(False)


def _draw_grid(
    panel: Axes, cell: pl.DataFrame, preset: Mapping[str, Any], keys: Sequence[str]
) -> None:
    """Draw alpha_scale against c1 as numbers on colours."""
    grid = _select_variants(cell, ["c1", "alpha_scale"], preset, keys)
    across, up = (sorted(grid[key].unique()) for key in ("alpha_scale", "c1"))
    values = grid[MEASURE].to_numpy().reshape(len(up), len(across))
    panel.imshow(values, cmap="Blues", aspect="auto", origin="lower")
    write_numbers(panel, values, (values.min() + values.max()) / 2, "black", "white", size=9)
    place = across.index(preset["alpha_scale"]) - 0.5, up.index(preset["c1"]) - 0.5
    panel.add_patch(Rectangle(place, 1, 1, fill=False, edgecolor="#D55E00", linewidth=2.5))
    panel.set_xticks(range(len(across)), [f"{value:g}" for value in across])
    panel.set_yticks(range(len(up)), [f"{value:g}" for value in up])
    panel.set(xlabel=SYMBOLS["alpha_scale"], ylabel=SYMBOLS["c1"])
