"""The figures of the page: a Bokeh plot a panel, and a switch a policy for all panels of a study.

The same colours, dashes and markers as in the printed figures (`names.py`). Hiding a policy scales
the axes to the others.
"""

import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
import yaml
from bokeh import models as bk
from bokeh.document import Document
from bokeh.embed import components
from bokeh.models.renderers import GlyphRenderer
from bokeh.models.ui.icons import SVGIcon
from bokeh.models.widgets import Toggle
from bokeh.plotting import figure
from bokeh.resources import Resources

from cqbjax.core.labels import OPTIMAL
from cqbjax.figures.panels import SYMBOLS, Cell, arrange_cells
from cqbjax.results.frame import add_interval
from cqbjax.results.metrics import list_shares
from cqbjax.results.policy_styles import Style, find_style, sort_policies
from reproduction.extracts import DIGITS, Extract, add_metrics

HEIGHT = 250  # pixels of a panel
DOTS = 1.6  # pixels a point of the printed figures' dashes
MARKS = 6  # markers on a line
SWATCH = 28  # pixels of a switch's picture of its line
_DATA = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
MARKERS, PATHS, BUTTON = _DATA.values()
RANDOM = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
FEW_LINES = 8  # the bands of more would cover one another, and are drawn lighter
TOOLS = "box_zoom,pan,wheel_zoom,zoom_in,zoom_out,reset,save"


class Panel(NamedTuple):
    """A plot's place on the page.

    Attributes:
        key: of its `<div>` in `Drawn.divs`.
        setting: K, rate and other keys that distinguish its cell.
        shows: the quantity of its vertical axis.
    """

    key: str
    setting: str
    shows: str


class Figure(NamedTuple):
    """A study's figure.

    Attributes:
        switches: keys of the policies' switches.
        panels: row by row as in the paper: K side by side, queue beside regret.
        columns: of panels, where the page is wide.
    """

    switches: Sequence[str]
    panels: Sequence[Panel]
    columns: int


class Drawn(NamedTuple):
    """All figures of the page, to be embedded.

    Attributes:
        figures: by study.
        scripts: study -> script that draws its figure once it comes into view.
        divs: key -> element to draw into.
        library: Bokeh itself, inline.
    """

    figures: dict[str, Figure]
    scripts: dict[str, str]
    divs: dict[str, str]
    library: str


def draw(extracts: Sequence[Extract]) -> Drawn:
    """Draw the figures of studies."""
    figures, scripts = {}, {}
    divs: dict[str, str] = {}
    for made in extracts:
        models: dict[str, bk.Model] = {}
        name, document = made.notes["name"], Document()
        figures[name] = _draw_figure(made, models)
        # Frozen: otherwise Bokeh collects all models again for each root.
        with document.models.freeze():
            for model in models.values():
                document.add_root(model)
        script, own = components(models)
        scripts[name] = script.replace("<script", f'<script type="lazy/{name}"', 1)
        divs |= own
    # Number Bokeh's random names, so that the same results give the same page.
    random = dict.fromkeys(RANDOM.findall("".join(scripts.values())))
    numbers = {name: f"plot-{i}" for i, name in enumerate(random)}

    def replace_names(text: Any) -> str:
        return RANDOM.sub(lambda match: numbers.get(match[0], match[0]), text)

    scripts, divs = ({k: replace_names(v) for k, v in one.items()} for one in (scripts, divs))
    library = Resources(mode="inline", components=["bokeh", "bokeh-widgets"])
    return Drawn(figures, scripts, divs, library.render_js())


def _draw_figure(made: Extract, models: dict[str, bk.Model]) -> Figure:
    """Draw a study, adding its models."""
    study, drawn = made.notes["name"], made.notes["drawn"]
    known = add_metrics(made.notes.get("metrics", {}))
    curves = add_interval(made.curves, shares=list_shares(known))
    there = set(curves["policy"].unique())
    chosen = {label for label in there if not drawn or label in drawn or label == OPTIMAL}
    labels = sort_policies(chosen if chosen - {OPTIMAL} else there)
    by_label: dict[str, list[GlyphRenderer]] = {label: [] for label in labels}
    panels: list[Panel] = []
    sizes, cells = _cells(made)
    for cell, setting in cells:
        own = curves.filter(point=cell.point, arrival_rate=cell.rate)
        for name in made.notes["panels"]:
            key, metric = f"{study}-{len(panels)}", known[name]
            models[key] = _draw_panel(own.filter(metric=name), metric.units, labels, by_label)
            panels.append(Panel(key, setting, metric.long_name))
    switches = []
    for label in labels:
        switches.append(f"{study}-switch-{label}")
        models[switches[-1]] = _make_switch(label, by_label[label])
    return Figure(switches, panels, 4 if sizes == 2 else 2)


def _cells(made: Extract) -> tuple[int, list[tuple[Cell, str]]]:
    """Return the number of cells side by side, and each cell with its distinguishing setting."""
    points = made.notes["points"]
    settings, rates = [one["setting"] for one in points], [one["rates"] for one in points]
    keys = [key for key in settings[0] if len({str(one.get(key)) for one in settings}) > 1]
    rows = arrange_cells(settings, rates, keys)
    cells = []
    for cell in (cell for row in rows for cell in row if cell is not None):
        words = {SYMBOLS.get(k, k): settings[cell.point].get(k) for k in ("K", *keys)}
        words[SYMBOLS["arrival_rate"]] = f"{cell.rate:g}"
        cells.append((cell, ", ".join(f"{key} = {value}" for key, value in words.items())))
    return len(rows[0]), cells


def _draw_panel(
    rows: pl.DataFrame, units: str, labels: Sequence[str], by_label: dict[str, list[Any]]
) -> figure:
    """Draw one panel, adding each policy's renderers to its list."""
    plot = figure(
        height=HEIGHT, sizing_mode="stretch_width", tools=TOOLS, active_drag=None,
        active_scroll=None, x_axis_label="round", y_axis_label=units,
        toolbar_location="above", x_range=bk.DataRange1d(range_padding=0, only_visible=True),
        y_range=bk.DataRange1d(only_visible=True), output_backend="canvas",
    )  # fmt: skip
    plot.toolbar.logo = None
    plot.xaxis.ticker = bk.BasicTicker(desired_num_ticks=4)
    plot.xaxis.formatter = bk.NumeralTickFormatter(format="0,0")
    plot.yaxis.ticker = bk.BasicTicker(desired_num_ticks=5)
    plot.yaxis.formatter = bk.BasicTickFormatter(use_scientific=False)
    plot.axis.minor_tick_line_color = None
    lines: list[Any] = []
    # The paper's own policies last, and so above the others.
    for label in sorted(labels, key=lambda one: find_style(one).on_top):
        # A share has no value before any query has left.
        own = rows.filter(policy=label).drop_nulls("mean").sort("round")
        if not own.height:
            continue
        style, source = find_style(label), _source(own, find_style(label).name)
        if own["low"].null_count() == 0:
            shade = 0.15 if len(labels) <= FEW_LINES else 0.07
            band = bk.VArea(x="t", y1="l", y2="h", fill_color=style.color, fill_alpha=shade)
            by_label[label].append(plot.add_glyph(source, band))
        line = bk.Line(
            x="t", y="m", line_color=style.color, line_width=1.2 * style.width,
            line_dash=_dashes(style),
        )  # fmt: skip
        lines.append(plot.add_glyph(source, line, name=style.name))
        by_label[label].append(lines[-1])
        if style.marker:
            every = max(1, own.height // MARKS)
            source = _source(own[every // 2 :: every].with_columns(low=None, high=None))
            marker = bk.Scatter(
                x="t", y="m", marker=MARKERS[style.marker], size=7, fill_color=style.color,
                line_color=style.color,
            )  # fmt: skip
            by_label[label].append(plot.add_glyph(source, marker))
    # The values of the line under the pointer.
    tips = [("", "$name"), ("round", "@t{0,0}"), ("mean", "@m{0,0.00}")]
    if all("l" in line.data_source.data for line in lines):
        tips.append(("95% interval", "@l{0,0.00} to @h{0,0.00}"))
    hover = bk.HoverTool(renderers=lines, tooltips=tips, line_policy="nearest", visible=False)
    plot.add_tools(hover)
    return plot


def _source(own: pl.DataFrame, name: str = "") -> bk.ColumnDataSource:
    """Return a line's data: t round, m mean, and l low, h high if both are complete.

    The numbers have the digits of an extract and are written out, which compresses best.
    """
    data = {
        short: own[column].cast(pl.Float64).round_sig_figs(DIGITS).to_list()
        for short, column in {"m": "mean", "l": "low", "h": "high"}.items()
        if own[column].null_count() == 0
    }
    return bk.ColumnDataSource({"t": own["round"].to_list(), **data}, name=name)


def _make_switch(label: str, renderers: Sequence[GlyphRenderer]) -> Toggle:
    """Return a button that shows and hides a policy in all panels of its study."""
    style, middle = find_style(label), SWATCH // 2
    dashes, color = _dashes(style), escape(style.color)
    dashed = "" if isinstance(dashes, str) else " ".join(map(str, dashes))
    mark, path = "", PATHS.get(style.marker, "")
    if style.marker == "o":
        mark = f'<circle cx="{middle}" cy="{middle}" r="4" fill="{color}"/>'
    elif path:
        turned = f'transform="translate({middle} {middle})"'
        mark = f'<path d="{path}" {turned} fill="{color}" stroke="{color}"/>'
    swatch = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{SWATCH}" height="{SWATCH}">'
        f'<line x1="0" y1="{middle}" x2="{SWATCH}" y2="{middle}" stroke="{color}" '
        f'stroke-width="{1.2 * style.width:.1f}" stroke-dasharray="{dashed}"/>{mark}</svg>'
    )
    icon = SVGIcon(svg=swatch, size=f"{SWATCH}px")
    switch = Toggle(label=style.name, active=True, icon=icon, margin=0, stylesheets=[BUTTON])
    for renderer in renderers:
        switch.js_link("active", renderer, "visible")
    return switch


def _dashes(style: Style) -> list[int] | str:
    """Return Bokeh's form of matplotlib's dashes."""
    if isinstance(style.dashes, str):
        return "solid"
    return [max(1, round(DOTS * style.width * part)) for part in style.dashes[1]]
