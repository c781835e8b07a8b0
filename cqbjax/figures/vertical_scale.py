"""Scales of a panel: the close rivals stay legible where weak policies would flatten them."""

import math
from typing import Any

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

FLATTENED = 2.5  # a policy this many times above the close rivals gets the logarithmic scale


def set_scale(axes: Axes, lines: pl.DataFrame) -> None:
    """Scale the vertical axis of a panel.

    The close rivals are on a linear scale; where weak policies would flatten them, it goes on above
    them as a logarithmic one.

    Args:
        axes: of the panel, its lines drawn.
        lines: `policy, mean, low, high` of what it shows.
    """
    # A share of nothing is no number, as before anybody has left.
    lines = lines.drop_nulls("mean")
    if lines.is_empty():
        return
    # One seed has no band: the mean alone counts.
    low, high = (pl.col("mean", end) for end in ("low", "high"))
    best = lines.select("policy", "mean", low=pl.min_horizontal(low), high=pl.max_horizontal(high))
    tops = np.sort(best.group_by("policy").agg(pl.col("high").max())["high"].to_numpy())
    close = count_close(tops)
    # A wide band below zero may be cut off, a mean may not.
    cut = max(float(best["low"].to_numpy().min()), -0.25 * float(tops[close - 1]))
    bottom = 1.05 * min(0.0, cut, float(best["mean"].to_numpy().min()))
    # Where all is nothing, one is above it.
    top = 1.05 * float(tops[-1]) if tops[-1] > 0 else 1.0
    if close < len(tops):
        # The more policies are close, the more height they get.
        _set_two_scales(axes, 1.06 * float(tops[close - 1]), top, 0.4 + 0.35 * close / len(tops))
    else:
        axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.set_ylim(bottom, top)


def count_close(tops: np.ndarray[Any, Any]) -> int:
    """Count the close rivals: the policies below the widest relative gap, where weak ones begin.

    Args:
        tops: [P] highest value of each policy, ascending.

    Returns:
        At least two, or all of them where no weak policy would flatten the others.
    """
    if len(tops) < 3 or tops[1] <= 0:
        return len(tops)
    close = 2 + int(np.argmax(tops[2:] / tops[1:-1]))
    return close if tops[-1] > FLATTENED * tops[close - 1] else len(tops)


def _set_two_scales(axes: Axes, threshold: float, top: float, share: float) -> None:
    """Scale linearly up to `threshold`, at `share` of the height, and logarithmically above it."""
    decades = np.log10(top / threshold)
    # matplotlib draws the linear part linscale / (1 - 1 / base) decades high.
    linscale = 0.9 * decades * share / (1 - share)
    axes.set_yscale("symlog", linthresh=threshold, linscale=linscale)
    linear = [tick for tick in MaxNLocator(4).tick_values(0, threshold) if 0 <= tick <= threshold]
    candidates = [m * 10.0**e for e in range(-3, 8) for m in (1, 2, 5)]
    # A tick closer than a line of text to its neighbour would overlap it.
    gap = decades * 0.13 / (1 - share)
    ticks, last = [], max(np.log10(linear[-1]) if linear[-1] else -9.0, np.log10(threshold) - gap)
    for tick in candidates:
        if threshold < tick <= top and np.log10(tick) >= last + gap:
            ticks.append(tick)
            last = np.log10(tick)
    axes.yaxis.set_major_locator(FixedLocator([*linear, *ticks]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.axhspan(threshold, top, color="0.5", alpha=0.12, linewidth=0, zorder=0)
    middle = (1.01, math.sqrt(threshold * top))
    axes.annotate(
        "log", middle, xycoords=axes.get_yaxis_transform(),
        rotation=90, va="center", color="0.35", style="italic", annotation_clip=False,
    )  # fmt: skip
