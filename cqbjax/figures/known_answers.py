"""A figure of known queues beside simulated ones."""

import numpy as np
import polars as pl
from matplotlib.figure import Figure

WIDTH, ROW, REST = 10.0, 0.28, 1.4
BLUE, GREY = "#0072B2", "#555555"


def draw_apart(table: pl.DataFrame, title: str) -> Figure:
    """Draw by how many percent each simulated mean is off, with its interval: a panel a load.

    Args:
        table: columns world, load, seeds, apart, apart_low and apart_high.
        title: of the figure.
    """
    worlds = table["world"].unique(maintain_order=True).to_list()
    loads = sorted(set(table["load"]))
    figure = Figure(figsize=(WIDTH, ROW * len(worlds) + REST), layout="constrained")
    panels = figure.subplots(1, len(loads), sharey=True, sharex=True, squeeze=False)[0]
    at = np.arange(len(worlds))
    for panel, load in zip(panels, loads, strict=True):
        rows = table.filter(pl.col("load") == load)
        middle, low, high = (rows[f"apart{end}"].to_numpy() for end in ("", "_low", "_high"))
        panel.axvline(0, color=GREY, linewidth=0.8)
        panel.errorbar(
            middle, at, xerr=[middle - low, high - middle], fmt="o", color=BLUE, markersize=4
        )
        panel.set_title(f"load {load:g}", loc="left")
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_yticks(at, worlds)
    panels[0].invert_yaxis()
    figure.supxlabel("simulated less known, in percent")
    figure.suptitle(f"{title}: {table['seeds'][0]} seeds, 95% interval")
    return figure
