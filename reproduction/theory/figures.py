"""Figures of the theorems: on log-log axes, with the slopes and bounds of the paper."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cqbjax.figures.panels import VERBATIM, add_legend
from cqbjax.results.policy_styles import find_style, sort_policies
from cqbjax.results.summaries import mean_ci
from reproduction.theory import quantities, slopes

WIDTH, HEIGHT = 10.0, 3.9
NAMES = {"regret": "Cumulative regret", "queue_regret": "Queue-length regret"}
BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#555555"


def _panels(rows: int, title: str, height: float = HEIGHT) -> tuple[Figure, np.ndarray]:
    figure = Figure(figsize=(WIDTH, height * rows), layout="constrained")
    axes = figure.subplots(rows, 2, squeeze=False)
    for panel in axes.flat:
        panel.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title, **VERBATIM)
    return figure, axes


def draw_slopes(points: Sequence[xr.Dataset], title: str) -> Figure:
    """Draw regret and queue-length regret on log-log axes, a row a point and arrival rate.

    Dots are means over seeds and a bin of rounds, bars their 95% intervals; a bar that reaches zero
    extends to the bottom. The dotted line has the slope of the paper's bound and passes through the
    first dot of ACQB, or of the first policy if ACQB did not run.
    """
    cells = [(point, rate) for point in points for rate in point.arrival_rate.values.tolist()]
    seeds = cells[0][0].sizes["seed"]
    figure, axes = _panels(len(cells), f"{title}: mean over {seeds} seeds with 95% interval")
    handles: list[list[Any]] = []
    for row, (point, rate) in zip(axes, cells, strict=True):
        curves = slopes.curves(point.sel(arrival_rate=rate))
        for panel, (name, values) in zip(row, curves.items(), strict=True):
            handles.append(_draw_curve(panel, values, slopes.CURVES[name]))
            panel.set_ylabel(NAMES[name])
        row[0].set_title(f"K = {point.attrs['K']}, λ = {rate:g}", loc="left")
    add_legend(axes[0, 1], handles[1], frameon=False, fontsize=9)
    return figure


def _draw_curve(panel: Axes, values: xr.DataArray, exponent: float) -> list[Any]:
    """Draw a curve a policy, and return the legend's handles."""
    handles: list[Any] = []
    labels = sort_policies(values.policy.values.tolist())
    at, _ = slopes.average_bins(values["round"].values, values["round"].values)
    reference = None
    for number, label in enumerate(labels):
        _, by_seed = slopes.average_bins(values["round"].values, values.sel(policy=label).values)
        interval = mean_ci(xr.DataArray(by_seed, dims=("seed", "round")))
        mean, low, high = (interval[part].values for part in ("mean", "low", "high"))
        positive, style = mean > 0, find_style(label)
        bars = np.stack([mean - np.maximum(low, 1e-9), high - mean])[:, positive]
        # Slightly shifted, so that bars do not cover one another.
        x = at[positive] * 1.02 ** (number - (len(labels) - 1) / 2)
        handles.append(panel.errorbar(
            x, mean[positive], bars, color=style.color, linestyle=style.dashes, marker="o",
            markersize=3.5, linewidth=1.2, elinewidth=0.9, label=style.name,
        ))  # fmt: skip
        if positive.any() and (reference is None or label == "acqb"):
            reference = float(mean[positive][0]), float(at[positive][0])
    panel.set_xscale("log")
    panel.set_yscale("log", nonpositive="clip")
    if reference is not None:
        value, start = reference
        line = value * (at / start) ** exponent
        slope = panel.plot(at, line, color=GREY, linestyle=":", label=f"slope {exponent:g}")
        handles = [*slope, *handles]
    heights = np.concatenate([np.asarray(line.get_ydata(), float) for line in panel.get_lines()])
    heights = heights[heights > 0]
    if heights.size:
        panel.set_ylim(0.5 * heights.min(), 2.0 * heights.max())
    panel.set_xlabel("Round")
    return handles


def draw_switching(frame: pl.DataFrame, title: str) -> Figure:
    """Draw the effect of round i at the end of the run, a row a setting.

    Args:
        frame: rows of `switching.average_by_switch` with K, policy and seeds.
        title: of the study.
    """
    cells = [cell for _, cell in frame.group_by("K", "policy", maintain_order=True)]
    paths = frame["seeds"][0]
    title = f"{title}: {paths} sample paths, band: 95% interval"
    figure, axes = _panels(len(cells), title, 3.0)
    for (left, right), cell in zip(axes, cells, strict=True):
        at = (cell["first"].to_numpy() + cell["last"].to_numpy()) / 2
        own = cell.row(0, named=True)
        left.set_title(f"K = {own['K']}, {find_style(own['policy']).name}", loc="left", **VERBATIM)
        drawn = (
            (left, "chance", "chance that $Q_i$ and $Q_{i-1}$ part in round $i$", GREY),
            (left, "longer", "$\\psi(i, T+1) = 1$", ORANGE),
            (left, "shorter", "$\\psi(i, T+1) = -1$", BLUE),
            (right, "psi", "$\\psi(i, T+1)$, mean", ORANGE),
        )
        for panel, name, words, color in drawn:
            ends = (cell[f"{name}_{end}"].to_numpy() for end in ("low", "high"))
            panel.fill_between(at, *ends, color=color, alpha=0.2, linewidth=0)
            panel.plot(at, cell[name].to_numpy(), color=color, label=words)
        right.plot(at, cell["e"].to_numpy(), color=GREY, linestyle="--", label="$e_i$ of the proof")
        right.axhline(0, color="black", linewidth=0.6)
        left.set_ylabel("share of paths")
        for panel in (left, right):
            panel.set_xlabel("round $i$ of the switch")
            panel.legend(frameon=False, fontsize=9)
    return figure


def draw_eigenvalues(points: Sequence[xr.Dataset], title: str) -> Figure:
    """Draw smallest eigenvalues against exploration rounds and against rounds, a row a point.

    Args:
        points: of `quantities.measure_eigenvalues`, with attrs K, parameters and c1.
        title: of the study.
    """
    title = f"{title}: mean over {points[0].sizes['seed']} seeds, band: 95% interval"
    figure, axes = _panels(len(points), title)
    for (left, right), point in zip(axes, points, strict=True):
        handles: list[Any] = []
        sigma, own = float(point.sigma.mean()), point.attrs
        rounds = point["round"].values
        for label in sort_policies(point.policy.values.tolist()):
            style, one = find_style(label), point.sel(policy=label)
            count = one["count"].mean("seed").values
            for name, dashes in (("all", "-"), ("explored", "--")):
                band = mean_ci(one[name])
                words = style.name if name == "all" else f"{style.name}, exploration alone"
                look: dict[str, Any] = {"color": style.color, "linestyle": dashes, "label": words}
                for panel, at, into in ((left, count, handles), (right, rounds, [])):
                    ends = band["low"], band["high"]
                    panel.fill_between(at, *ends, color=style.color, alpha=0.2, linewidth=0)
                    into += panel.plot(at, band["mean"], **look)
        most = np.linspace(1, float(point["count"].mean("seed").max()), 200)
        words = "the lemma's σ₀² N / 2"
        handles += left.plot(most, sigma * most / 2, color="black", linestyle=":", label=words)
        bound = quantities.lemma_bound(rounds, sigma, own["arrival_rate"], own["c1"])
        right.plot(rounds, bound, color="black", linestyle=":")
        left.set_title(f"K = {own['K']}, {own['parameters']} parameters", loc="left", **VERBATIM)
        left.set_xlabel("exploration rounds $N(t)$, mean over seeds")
        right.set_xlabel("Round")
        left.set_ylabel("$\\lambda_{min}(V_t) - \\lambda_0$")
        for panel in (left, right):
            panel.set(xscale="log", yscale="log")
            panel.set_ylim(bottom=1e-2)
        if left is axes[0, 0]:
            # Lines reach every corner of some panel: the legend is below all panels.
            below = {"loc": "outside lower center", "ncols": 4}
            add_legend(figure, handles, frameon=False, fontsize=9, **below)
    return figure
