"""Figures and tables: what they show is what the results say, and looks the same everywhere."""

import io
import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import scipy.stats
import xarray as xr
import yaml
from fabricated import SKILL, SLICE, fabricate, row_of
from markdown_it import MarkdownIt
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from PIL import Image
from rich.console import Console
from tiers import cases

from cqbjax.arena import figures as arena
from cqbjax.experiments import configs, display
from cqbjax.experiments.study_types import StudyOutput
from cqbjax.figures import curves as figures
from cqbjax.figures import files as figure_files
from cqbjax.figures import panels, sweeps
from cqbjax.results import policy_styles, tables
from cqbjax.results.frame import aggregate_points
from cqbjax.results.table_text import WHY_NONE, split_table

REPOSITORY = Path(__file__).resolve().parents[2]
LENGTH = ("queue_length", "regret")
RIVALS = ("acqb", "acqb_fifo", "cqb_eps", "random")


def lines(figure: Figure, panel: int) -> dict[str, Any]:
    """The lines of one panel by the colour and dashes that the style gives each policy."""
    by_policy = {}
    for line in figure.axes[panel].get_lines():
        for policy, style in policy_styles.STYLE.items():
            drawn = Line2D([], [], **panels.line_options(style))
            same = (line.get_color(), line.get_linestyle(), line.get_marker()) == (
                drawn.get_color(), drawn.get_linestyle(), drawn.get_marker(),
            )  # fmt: skip
            if same and line._dash_pattern == drawn._dash_pattern:
                by_policy[policy] = line
    return by_policy


def title_of(panel: Any) -> str:
    titles = [text.get_text() for text in panel.texts if text.get_gid() == "title"]
    return " ".join(titles).replace("\u00a0", " ")


def texts(figure: Figure) -> str:
    return " ".join(
        text.get_text() for text in figure.findobj(match=lambda a: hasattr(a, "get_text"))
    )


def test_curves_show_means_and_interval_bands() -> None:
    ds = fabricate(RIVALS, num_seeds=12, horizon=50)
    figure = figures.draw_curves([ds])
    queue, regret = lines(figure, 0), lines(figure, 1)
    assert set(queue) == set(regret) == set(RIVALS)
    gap = (ds["queue_length"] - ds["optimal_queue_length"]).sel(policy="acqb", arrival_rate=0.7)
    np.testing.assert_allclose(queue["acqb"].get_ydata(), gap.mean("seed"))
    np.testing.assert_allclose(
        regret["random"].get_ydata(), ds["regret"].sel(policy="random")[0].mean("seed"), rtol=1e-6
    )
    interval = scipy.stats.ttest_1samp(gap[:, -1], 0.0).confidence_interval(0.95)
    corners = {
        tuple(np.round(corner, 9))
        for band in figure.axes[0].collections
        for corner in band.get_paths()[0].vertices
    }
    assert {(50.0, round(interval.low, 9)), (50.0, round(interval.high, 9))} <= corners


def test_one_sd_bands_are_wider_and_labelled() -> None:
    ds = fabricate(num_seeds=12)
    ci, sd = (figures.draw_curves([ds], spread=s) for s in ("ci", "sd"))
    heights = [
        np.ptp(figure.axes[0].collections[0].get_paths()[0].vertices[:, 1]) for figure in (ci, sd)
    ]
    assert heights[1] > heights[0]
    assert "12 seeds; band: 95% confidence" in texts(ci) and "1 standard deviation" in texts(sd)


def test_queue_length_shows_the_optimal_line() -> None:
    ds = fabricate(("optimal", "acqb", "random"), num_seeds=5)
    length = figures.draw_curves([ds], LENGTH)
    optimal = lines(length, 0)["optimal"].get_ydata()
    np.testing.assert_allclose(optimal, ds["optimal_queue_length"][0].mean("seed"))
    assert "optimal" not in lines(length, 1)
    assert "optimal" not in lines(figures.draw_curves([ds]), 0)


@pytest.mark.slow
def test_policies_keep_their_style_in_every_figure() -> None:
    one = figures.draw_curves([fabricate(("acqb", "random"))])
    two = figures.draw_curves([fabricate(("knn", "random", "cqb_eps", "acqb"), K=2)])
    for policy in ("acqb", "random"):
        a, b = lines(one, 0)[policy], lines(two, 0)[policy]
        assert a.get_color() == b.get_color() and a._dash_pattern == b._dash_pattern


def test_styles_can_be_distinguished() -> None:
    looks = [(s.color, str(s.dashes), s.marker) for s in policy_styles.STYLE.values()]
    assert len(set(looks)) == len(looks)
    assert len({style.name for style in policy_styles.STYLE.values()}) == len(policy_styles.STYLE)
    assert set(SKILL) <= set(policy_styles.STYLE)


def drawn_policies(name: str) -> list[str]:
    """The policies in the figure of a shipped experiment, whose defaults are read as files."""
    study = yaml.safe_load((REPOSITORY / "conf" / "experiment" / f"{name}.yaml").read_text())
    policies: list[str] = study.get("figure_policies", [])
    for one in study.get("defaults", []):
        if isinstance(one, str) and (REPOSITORY / f"conf/experiment/{one}.yaml").exists():
            policies = policies or drawn_policies(one)
        elif isinstance(one, dict):
            policies = policies or one.get("override /policy", [])
    return policies


def color_distance(one: str, other: str) -> float:
    """How different two policies' colours look: twice what a careful eye sees is about 5."""

    def colour_coordinates(policy: str) -> np.ndarray:
        channels = np.array(to_rgb(policy_styles.find_style(policy).color))
        linear = np.where(channels > 0.04045, ((channels + 0.055) / 1.055) ** 2.4, channels / 12.92)
        xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722],
                        [0.0193, 0.1192, 0.9505]]) @ linear / [0.9505, 1, 1.089]  # fmt: skip
        x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
        return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])

    return float(np.linalg.norm(colour_coordinates(one) - colour_coordinates(other)))


def test_policies_that_a_study_draws_together_have_different_colours() -> None:
    close = [
        (path.stem, one, other)
        for path in sorted((REPOSITORY / "conf" / "experiment").glob("*.yaml"))
        for one, other in itertools.combinations(drawn_policies(path.stem), 2)
        if color_distance(one, other) < 8
    ]
    assert not close


def test_user_defined_policies_get_a_style_from_their_label() -> None:
    assert policy_styles.find_style("mine") == policy_styles.find_style("mine")
    assert policy_styles.find_style("mine").name == "mine"
    drawn = policy_styles.find_style("mine")
    assert all(
        (drawn.color, drawn.marker) != (s.color, s.marker) for s in policy_styles.STYLE.values()
    )


def test_figures_have_columns_by_k_and_rows_by_rate() -> None:
    points = [
        fabricate(rates=(0.5, 0.6, 0.7), K=1, num_seeds=3),
        fabricate(rates=(0.55, 0.65), K=2, num_seeds=3),
    ]
    figure = figures.draw_curves(points)
    titles = [title_of(panel) for panel in figure.axes]
    assert len(figure.axes) == 12
    assert [t[-3:] for t in titles[::4]] == ["0.5", "0.6", "0.7"]
    assert titles[2] == "K = 2, N = 5, ε = 0.03, λ = 0.55" and titles[6].endswith("0.65")
    assert not figure.axes[10].axison and not figure.axes[11].axison


@pytest.mark.slow
def test_panel_rows_are_sorted_by_value() -> None:
    points = [fabricate(num_servers=n, num_seeds=2) for n in (10, 3, 5)]
    points += [fabricate(num_servers=3, rates=(0.8,), num_seeds=2)]
    titles = [title_of(panel) for panel in figures.draw_curves(points).axes[::2]]
    assert [t.split(", ")[1] for t in titles] == ["N = 3", "N = 3", "N = 5", "N = 10"]
    assert {t.split("λ = ")[1] for t in titles[:2]} == {"0.7", "0.8"}


def test_figures_show_the_label_of_proxy_data() -> None:
    assert "a slice of 3,164 prompts" in texts(figures.draw_curves([fabricate(**SLICE)]))
    assert "Data:" not in texts(figures.draw_curves([fabricate()]))


def test_axes_are_linear_by_default_and_logarithmic_on_request() -> None:
    ds = fabricate(("acqb", "cqb_eps", "q_ucb", "random"), num_seeds=10, horizon=600)
    top = float((ds["queue_length"] - ds["optimal_queue_length"]).mean("seed").max())
    for scale in ("linear", "log"):
        panel = figures.draw_curves([ds], scale=scale).axes[0]
        assert panel.get_yscale() == scale and panel.get_ylim()[1] > top
    zeros = ds.assign(queue_length=0 * ds["queue_length"], optimal_queue_length=0 * ds["regret"])
    assert figures.draw_curves([zeros], ["queue_length"]).axes[0].get_ylim() == (0, 1)


@pytest.mark.slow
def test_single_seed_figures_have_legible_text() -> None:
    points = [fabricate(RIVALS, num_seeds=1, K=k) for k in (1, 2)]
    figure = figures.draw_curves(points)
    figure.draw_without_rendering()
    shrink = panels.PAGE_WIDTH / figure.get_figwidth()
    sizes = [t.get_fontsize() * shrink for t in figure.findobj(Text)]
    assert min(sizes) >= 8 and "One seed" in texts(figure)


@pytest.mark.slow
@pytest.mark.parametrize("horizon", [1000, 5000, 25000])
def test_figure_texts_do_not_overlap_or_overflow(horizon: int) -> None:
    points = [fabricate(list(SKILL), rates=(0.6, 0.7), num_seeds=2, K=k, **SLICE) for k in (1, 2)]
    for point in points:
        point.attrs["parameters"] = f"disjoint, with a long story for K of {point.attrs['K']}"
    figure = figures.draw_curves(points, LENGTH)
    figure.draw_without_rendering()
    frame = figure.bbox
    legend = figure.legends[0].get_window_extent()
    title = figure._suptitle.get_window_extent()
    boxes = [panel.get_tightbbox() for panel in figure.axes]
    drawn = [panel for panel in figure.axes if panel.axison]
    for panel in drawn:
        numbers = [label.get_window_extent() for label in panel.get_xticklabels()]
        assert all(a.x1 + 4 < b.x0 for a, b in itertools.pairwise(numbers))
    assert all(panel.bbox.width > 0.14 * frame.width for panel in drawn)
    for box in (legend, title, *boxes):
        assert box.x0 >= frame.x0 - 1 and box.x1 <= frame.x1 + 1
        assert box.y0 >= frame.y0 - 1 and box.y1 <= frame.y1 + 1
    assert all(not box.overlaps(legend) and not box.overlaps(title) for box in boxes)


@pytest.mark.slow
def test_saved_figures_are_the_same_bytes_again(tmp_path: Path) -> None:
    for name in ("a", "b"):
        figure_files.save_figure(figures.draw_curves([fabricate()]), tmp_path / name)
    a, b = ((tmp_path / f"{name}.png").read_bytes() for name in ("a", "b"))
    assert a == b and a.startswith(b"\x89PNG")
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"spread": "se"}, "spread is se: choose one of ci, sd"),
        ({"metrics": ["speed"]}, "metric speed is unknown; choose from gap, queue_length"),
    ],
)
def test_unknown_figure_options_are_rejected(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        figures.draw_curves([fabricate()], **options)


def test_empty_figures_are_rejected() -> None:
    with pytest.raises(ValueError, match="points is empty"):
        figures.draw_curves([])
    with pytest.raises(ValueError, match="no policy but optimal"):
        figures.draw_curves([fabricate(("optimal",))])
    with pytest.raises(ValueError, match="points is empty"):
        tables.gap_table([])


def test_throughput_table_matches_the_arrays() -> None:
    ds = fabricate(RIVALS, rates=(0.6, 0.7), num_seeds=9, horizon=100, every=10)
    table = tables.throughput_table([ds], rounds=(55, 100))
    assert table.height == 2 * 2 * 4 and set(table["round"]) == {50, 100}
    row = row_of(table, arrival_rate=0.7, round=50, policy="cqb_eps")
    ours, rival = (ds["departures"].sel(policy=p, arrival_rate=0.7, round=50) / 50
                   for p in ("acqb", "cqb_eps"))  # fmt: skip
    assert row["throughput"] == pytest.approx(float(rival.mean()))
    expected = scipy.stats.ttest_rel(ours, rival).confidence_interval(0.95)
    assert [row["acqb_minus_low"], row["acqb_minus_high"]] == pytest.approx(list(expected))
    assert row["excludes_zero"] is bool(expected.low > 0 or expected.high < 0)
    assert row["seconds_per_round"] == pytest.approx(3e-6) and row["seeds"] == 9
    assert row_of(table, arrival_rate=0.7, round=50, policy="acqb")["acqb_minus"] is None


def test_intervals_containing_zero_are_not_differences() -> None:
    ds = fabricate(("acqb", "random"), num_seeds=4, horizon=20)
    same = ds.assign(departures=ds["departures"].copy())
    same["departures"].loc[{"policy": "random"}] = same["departures"].sel(policy="acqb").values
    same["departures"].loc[{"policy": "random", "seed": 0}] += 1
    same["departures"].loc[{"policy": "random", "seed": 1}] -= 1
    row = row_of(tables.throughput_table([same], rounds=(20,)), policy="random")
    assert row["acqb_minus"] == 0 and row["excludes_zero"] is False


@pytest.mark.parametrize(
    ("low", "high", "shown"),
    [(-0.0012, -4e-7, "-0.0006002 [-0.0012000, -0.0000004]"), (3e-6, 0.1, "0.050002 [0.000003"),
     (-0.0012, 0.0, "-0.00060 [-0.00120, 0.00000]"), (-0.0012, 4e-6, "-0.00060 [-0.00120, 0.0"),
     (0.1, 0.2, "0.150 [0.100, 0.200]"), (0.68, 0.702, "0.691 [0.680, 0.702]"),
     (0.4, 2.6, "1.5 [0.4, 2.6]"), (248.2, 273.1, "261 [248, 273]"),
     (1230.0, 1410.0, "1320 [1230, 1410]"), (0.998, 1.002, "1.000 [0.998, 1.002]"),
     (-0.000561, 0.000227, "-0.00017 [-0.00056, 0.00023]")],
)  # fmt: skip
def test_intervals_are_rounded_without_touching_zero(low, high, shown) -> None:
    row = {"acqb_minus": [(low + high) / 2], "acqb_minus_low": [low], "acqb_minus_high": [high]}
    (part,) = split_table(pl.DataFrame(row), {})[1]
    assert part.rows[0][0].startswith(shown)


def test_one_seed_has_no_interval_and_no_verdict(tmp_path: Path) -> None:
    table = tables.throughput_table([fabricate(num_seeds=1)], rounds=(60,))
    assert table["excludes_zero"].is_null().all() and table["throughput_low"].is_null().all()
    assert table["throughput"].null_count() == 0 and table["excludes_zero"].dtype == pl.Boolean
    tables.save_table(table, tmp_path / "one", "One seed")


def test_intervals_have_positive_width_and_shares_stay_in_0_1(tmp_path: Path) -> None:
    """0 of 8 seeds, seeds that are all alike, and a share that varies: Wilson's, none, Wilson's."""
    point = fabricate(("random", "acqb"), num_seeds=8)
    at_end = {"none": 0.0, "all": 1.0, "some": 0.0, "tries": 1.0}
    for name, value in at_end.items():
        values = np.full((2, 1, 8), value)
        values[:, :, 0] += 0.1 * (name == "some")
        units = {"units": "attempts" if name == "tries" else ""}
        point[name] = xr.DataArray(values, dims=("policy", "arrival_rate", "seed"), attrs=units)
    row = tables.throughput_table([point], [60]).row(0, named=True)
    wilson = scipy.stats.binomtest(0, 8).proportion_ci(method="wilson")
    assert (row["none_low"], row["none_high"]) == (0, pytest.approx(wilson.high))
    assert (row["all_low"], row["all_high"]) == (pytest.approx(1 - wilson.high), 1)
    assert 0 <= row["some_low"] < row["some"] < row["some_high"] < 1
    assert (row["tries"], row["tries_low"], row["tries_high"]) == (1, None, None)
    made = aggregate_points([point], ["none", "tries"]).filter(policy="random")
    assert made["low"].to_list() == [0, None] and made["high"][1] is None
    _, markdown = tables.save_table(tables.throughput_table([point], [60]), tmp_path / "t", "T")
    assert "1.00 [–]" in markdown.read_text() and "equal values of all" in markdown.read_text()


def test_tables_without_the_reference_have_no_difference() -> None:
    table = tables.throughput_table([fabricate(("knn", "random"))], rounds=(60,))
    assert table["acqb_minus"].is_null().all() and table["excludes_zero"].is_null().all()


def test_gap_table_compares_with_a_policy_seed_by_seed() -> None:
    ds = fabricate(("acqb", "random", "zero"), num_seeds=6)
    table = tables.gap_table([ds], rounds=(60,), reference="zero")
    gap = (ds.queue_length - ds.optimal_queue_length).isel(arrival_rate=0, round=-1)
    difference = (gap.sel(policy="zero") - gap.sel(policy="acqb")).values
    row = row_of(table, policy="acqb")
    assert row["zero_gap_minus"] == pytest.approx(difference.mean())
    half = scipy.stats.t.ppf(0.975, 5) * difference.std(ddof=1) / np.sqrt(6)
    assert row["zero_gap_minus_high"] == pytest.approx(difference.mean() + half)
    assert row["excludes_zero"] == (abs(difference.mean()) > half)
    assert row_of(table, policy="zero")["zero_gap_minus"] is None
    assert "ZERO's gap minus policy's" in split_table(table, {})[1][0].headers


@pytest.mark.parametrize("name, array", [("length", "queue_length"), ("regret", "regret")])
def test_tables_end_at_the_last_round_of_each_point(name: str, array: str) -> None:
    points = [fabricate(("acqb", "zero"), num_seeds=6, horizon=rounds) for rounds in (40, 80)]
    table = tables.gap_table(points, rounds=(80,), reference="zero", of=name)
    assert table.select("horizon", "round").unique().rows() in ([(40, 40), (80, 80)],
                                                                [(80, 80), (40, 40)])  # fmt: skip
    for ds in points:
        last = ds[array].isel(arrival_rate=0, round=-1)
        rounds = int(ds.attrs["horizon"])
        row = table.filter(policy="acqb", horizon=rounds).row(0, named=True)
        assert row[f"{name}_mean"] == pytest.approx(float(last.sel(policy="acqb").mean()))
        difference = float((last.sel(policy="zero") - last.sel(policy="acqb")).mean())
        assert row[f"zero_{name}_minus"] == pytest.approx(difference)
    headers = split_table(table, {})[1][0].headers
    assert f"ZERO's {name} minus policy's" in headers


def test_gap_table_matches_the_arrays() -> None:
    ds = fabricate(RIVALS, num_seeds=9, horizon=100)
    row = row_of(tables.gap_table([ds], rounds=(100, 5000)), policy="random")
    gap = (ds["queue_length"].sel(policy="random") - ds["optimal_queue_length"])[0, :, -1]
    assert row["gap_mean"] == pytest.approx(float(gap.mean()))
    assert row["gap_sd"] == pytest.approx(float(gap.std(ddof=1)))
    assert row["round"] == 100


def test_a_round_before_the_first_recorded_is_refused() -> None:
    with pytest.raises(ValueError, match="round is 5: the first recorded round"):
        tables.gap_table([fabricate(every=10)], rounds=(5,))


def test_saved_and_printed_tables_are_equal(tmp_path: Path) -> None:
    table = tables.gap_table([fabricate(RIVALS, **SLICE)], rounds=(60,))
    csv, markdown = tables.save_table(table, tmp_path / "gap", "Gap at the end")
    back = pl.read_csv(csv)
    assert (
        back.columns == table.columns and back["gap_mean"].to_list() == table["gap_mean"].to_list()
    )
    text = markdown.read_text()
    assert text.startswith("**Gap at the end**") and "a slice of 3,164 prompts" in text
    row = row_of(table, policy="cqb_eps")
    cell = f"{row['gap_mean']:.1f} [{row['gap_mean_low']:.1f}, {row['gap_mean_high']:.1f}]"
    assert f" | {cell} |" in next(x for x in text.splitlines() if x.startswith("| CQB-ε |"))
    widths = {line.count("|") for line in text.splitlines() if line.startswith("|")}
    assert len(widths) == 1
    screen = io.StringIO()
    tables.print_table(table, "Gap at the end", Console(width=160, file=screen))
    shown = " ".join(screen.getvalue().split())
    assert cell in shown and "a slice of 3,164 prompts [binary]" in shown
    assert len(list(tmp_path.iterdir())) == 2


def print_text(table: pl.DataFrame, width: int) -> list[str]:
    """Return the lines of a printed table."""
    screen = io.StringIO()
    tables.print_table(table, "A title", Console(width=width, file=screen))
    return screen.getvalue().splitlines()


def test_header_words_are_not_broken_at_any_width() -> None:
    points = [fabricate(("optimal", "acqb", "random"), num_seeds=2)]
    table = tables.gap_table(points, rounds=(30, 60))
    (section,) = split_table(table, {})[1]
    for width in range(60, 100):
        printed = " ".join(print_text(table, width)).split()
        assert {word for header in section.headers for word in header.split()} <= {*printed}, width


def test_differences_from_missing_policies_are_not_shown() -> None:
    table = tables.gap_table([fabricate(("optimal", "random"), num_seeds=2)], rounds=(60,))
    (section,) = split_table(table.with_columns(acqb_gap_minus=pl.lit(None, pl.Float64)), {})[1]
    assert not any(header.endswith("minus policy's") for header in section.headers)


@pytest.mark.slow
@pytest.mark.parametrize("width", [200, 80, 40, 20])
def test_printed_tables_fit_the_terminal_without_loss(width: int) -> None:
    points = [fabricate(("optimal", *RIVALS), num_seeds=8, rates=(0.5, 0.6), K=k) for k in (1, 2)]
    table = tables.throughput_table(points, [30, 60])
    printed = print_text(table, width)
    assert max(map(len, printed)) <= width
    wide = " ".join(" ".join(print_text(table, 500)).split())
    cells = [cell for row in split_table(table, {})[1][0].rows for cell in row]
    text = " ".join(" ".join(printed).split())
    assert all(cell in wide and cell in text for cell in cells)
    headers = sum(line.split()[:2] == ["K", "λ"] for line in printed)
    assert headers == {200: 1, 80: 3, 40: 0, 20: 0}[width], "one table, folded, and a list"


def test_printed_tables_begin_with_queue_length_and_gap() -> None:
    table = tables.throughput_table([fabricate(("optimal", *RIVALS), num_seeds=8)], [30, 60])
    (part,) = split_table(table, {})[1]
    assert part.headers[:5] == [
        "round", "policy", "queue length", "gap to the oracle", "throughput",
    ]  # fmt: skip
    assert all(row[3] == "0" for row in part.rows if row[1] == "oracle")
    assert "time a round" not in part.headers and "excludes 0" not in part.headers
    assert "5.0 µs: random query and LLM." in part.legend and WHY_NONE not in part.legend
    beside = table.with_columns(paper_seconds_per_round=pl.lit(0.01))
    (part,) = split_table(beside, {})[1]
    assert {"time a round", "paper"} <= {*part.headers}


def test_a_table_without_rows_is_not_printed() -> None:
    assert print_text(tables.gap_table([fabricate()], [60]).clear(), 80) == []


def test_points_of_several_sources_are_distinguished() -> None:
    points: list[xr.Dataset] = [fabricate(), fabricate(**SLICE)]
    points[1].attrs.pop("slackness")
    table = tables.gap_table(points, rounds=(60,))
    assert set(table["source"]) == {"synthetic", "RouterBench slice"}
    assert row_of(table, source="RouterBench slice", policy="acqb")["slackness"] is None


# Labels and other words of a user's that look like markup: of matplotlib, HTML or Markdown.
ODD = (
    "_mine", "a$b$", "50%", "a_b^c", "$x", r"back\slash{}", "<b>&amp;", r"a$\no$", "*x*", "a|b",
    "~~x~~", "[a](b)", "`x`",
)  # fmt: skip


def make_odd(**attributes: Any) -> xr.Dataset:
    """Return a point whose policies are called so, and its source and a swept key."""
    known = {"source": r"a$\no$", "stand_in": r"a$\no$", "title": r"b$\no$", **attributes}
    made = fabricate(list(SKILL)[1 : 1 + len(ODD)], **known)
    made["waits$\\no$"] = made.queue_length.assign_attrs(long_name=r"w$\no$", units="$x$")
    return made.assign_coords(policy=list(ODD))


def odd_figure(name: str) -> Figure:
    point, swept = (
        make_odd(),
        [make_odd(**{r"k$\no$": value, "j": j}) for value in ODD[:2] for j in (1, 2)],
    )
    scored = [
        {"policy": label, "task": task, "score": 0.5, "score_low": 0.4, "score_high": 0.6,
         "group": 1, "standing": "best", "same_as": None, "iqm": 0.5, "iqm_low": 0.4,
         "iqm_high": 0.6}
        for label in ODD for task in ("t", "u")
    ]  # fmt: skip
    table = pl.DataFrame(scored)
    overall, waits = table.filter(task="t"), "waits$\\no$"
    if name == "curves":
        return figures.draw_curves([point], ["gap", waits])
    if name == "keys":
        return sweeps.draw_over_keys(swept, over=[r"k$\no$"])
    if name == "maps":
        return sweeps.draw_over_keys(swept, waits)
    return arena.draw_scores(table, overall, {"t": r"a$\no$", "u": "x"}, "_mine")


DRAWN = ("curves", "keys", "maps", "scores")


@pytest.mark.parametrize("name", cases(DRAWN, ["maps"]))
def test_user_defined_labels_are_drawn_verbatim(name: str) -> None:
    figure = odd_figure(name)
    figure.draw_without_rendering()
    shown = [text for text in figure.findobj(Text) if text.get_visible()]
    assert set(ODD) <= {text.get_text() for text in shown}
    maths = [text.get_text() for text in shown if text._preprocess_math(text.get_text())[1]]
    # A logarithmic axis has powers of ten.
    assert all("mathdefault" in text for text in maths), maths


def test_user_defined_labels_are_written_verbatim_in_markdown(tmp_path: Path) -> None:
    table = tables.gap_table([make_odd()], rounds=(60,))
    _, markdown = tables.save_table(table, tmp_path / "odd", " and ".join(ODD))
    read = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(markdown.read_text())
    contents = [
        "".join(c.content for c in one.children or []) for one in read if one.type == "inline"
    ]
    assert contents[0] == " and ".join(ODD) and r"a$\no$" in contents[1]
    assert set(ODD) <= set(contents)
    # GitHub takes what stands between two dollars for mathematics.
    assert not re.search(r"(?<!\\)\$", markdown.read_text())


@pytest.mark.slow
def test_saving_does_not_modify_the_figure(tmp_path: Path) -> None:
    figure = figures.draw_curves([fabricate()])
    engine, dots = figure.get_layout_engine(), figure.dpi
    figure_files.save_figure(figure, tmp_path / "a")
    assert figure.get_layout_engine() is engine and figure.dpi == dots
    drawn = tmp_path / "by_matplotlib.png"
    figure.savefig(drawn, dpi=figure_files.DOTS_PER_INCH, metadata={"Software": None})
    reduced = figure_files.encode_png(figure)
    assert reduced == (tmp_path / "a.png").read_bytes()
    off = colours_off(tmp_path / "a.png", drawn)
    assert off.mean() < 1 and (off > 16).mean() < 0.01
    assert (tmp_path / "a.png").stat().st_size < 0.6 * drawn.stat().st_size
    other = figures.draw_curves([fabricate()])
    other.set_layout_engine("none")
    figure_files.save_figure(other, tmp_path / "b")
    assert (tmp_path / "b.png").read_bytes() != reduced
    assert (colours_off(tmp_path / "b.png", drawn) > 16).mean() > 0.05


def test_paper_figures_have_column_width_and_are_deterministic(
    tmp_path: Path,
) -> None:
    written = []
    for name in ("a", "b"):
        figure = figures.draw_curves([fabricate()])
        figure.suptitle("A finding")
        path = figure_files.save_paper_figure(figure, tmp_path / name)
        assert figure.get_figwidth() == 3.3 and "A finding" not in texts(figure)
        assert {text.get_fontsize() for text in figure.findobj(Text)} == {8}
        written.append(path.read_bytes())
    assert written[0] == written[1] and b"MediaBox [ 0 0 237.6 " in written[0]
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["a.pdf", "b.pdf"]


def test_a_study_and_the_report_write_figures_for_a_paper(tmp_path: Path) -> None:
    written = []
    points = [fabricate(), fabricate(K=2)]
    for number, drawn in enumerate((points[:1], points[:1], points)):
        config = configs.parse_yaml(f"results_dir: {tmp_path / str(number)}\nfigure: paper\n")
        output = StudyOutput({}, {"": figures.draw_curves(drawn), "users": Figure()})
        output.figures["users"].subplots()
        paths = display.write_output(output, config, "one")
        assert [path.name for path in paths] == ["one.pdf", "one_users.pdf"]
        written.append(paths[0].read_bytes())
    # Two columns if panels of two assortment sizes are side by side.
    assert written[0] == written[1] and b"MediaBox [ 0 0 237.6 " in written[0]
    assert b"MediaBox [ 0 0 496.8 " in written[2]


def test_the_legend_of_a_figure_for_a_paper_fits_its_column(tmp_path: Path) -> None:
    figure = figures.draw_curves([fabricate(RIVALS)])
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    figure_files.save_paper_figure(figure, tmp_path / "a")
    (legend,) = figure.legends
    figure.canvas.draw()
    box = legend.get_window_extent()
    assert [text.get_text() for text in legend.get_texts()] == labels
    assert box.x0 >= 0 and box.x1 <= figure.bbox.x1


def test_png_compression_keeps_the_colours_of_small_dots() -> None:
    figure = Figure(figsize=(4, 3))
    panel = figure.subplots()
    for at, label in enumerate(policy_styles.STYLE):
        panel.plot(at, at % 7, "o", color=policy_styles.STYLE[label].color, markersize=3)
        panel.fill_between([at, at + 9], at % 5, 6, color=f"C{at % 10}", alpha=0.08, linewidth=0)
    encoded = Image.open(io.BytesIO(figure_files.encode_png(figure))).convert("RGB")
    drawn = {tuple(one) for one in np.asarray(encoded).reshape(-1, 3).tolist()}
    for style in policy_styles.STYLE.values():
        color = np.round(255 * np.array(to_rgb(style.color)))
        assert min(np.abs(color - one).max() for one in drawn) <= 12, style.name


def colours_off(one: Path, other: Path) -> np.ndarray:
    """Return by how much each pixel differs, of 255."""
    pixels = [np.asarray(Image.open(path).convert("RGB"), int) for path in (one, other)]
    return np.abs(pixels[0] - pixels[1]).max(axis=-1)


def test_retry_variants_get_a_shade_of_their_base_colour():
    style = policy_styles.find_style("thompson_fallback_least_served")
    base = np.array(to_rgb(policy_styles.STYLE["thompson"].color))
    np.testing.assert_allclose(to_rgb(style.color), 0.6 * base + 0.4, atol=1 / 255)
    darker = to_rgb(policy_styles.find_style("thompson_recall").color)
    np.testing.assert_allclose(darker, 0.65 * base, atol=1 / 255)
    assert style.name == "Thompson sampling by LLM, another LLM on a retry, least served first"
    assert policy_styles.find_style("lints_lifo").name == "LinTS, newest first"
