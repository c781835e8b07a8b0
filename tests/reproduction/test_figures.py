"""The pictures of the pages show what the committed tables say, in colours that differ."""

import itertools
import re

import polars as pl
import pytest

from cqbjax.results.policy_styles import find_style
from reproduction import figures

PICTURES = figures.load_pictures()


def panels(picture):
    """Return the entries of a picture's panels, each with the keys of the picture."""
    for panel in picture["panels"]:
        yield picture | panel | {"where": picture.get("where", {}) | panel.get("where", {})}


@pytest.mark.parametrize("name", PICTURES)
def test_policies_of_a_picture_have_different_colours(name):
    for panel in panels(PICTURES[name]):
        rows = figures.read_rows(panel)
        assert rows.height, panel
        named = panel["kind"] == "printed" or (panel["kind"] == "dots" and "label" not in panel)
        labels = set() if named else {*rows["policy"]} - {*panel.get("muted", [])}
        for one, other in itertools.combinations(sorted(labels), 2):
            colors = [figures.style_line(label, panel).color for label in (one, other)]
            assert colors[0] != colors[1], (one, other)


@pytest.mark.parametrize("name", PICTURES)
def test_a_policy_has_one_name_in_all_pictures(name):
    both = "another LLM on a retry, least served first"
    for panel in panels(PICTURES[name]):
        series = panel.get("series", ())
        for label, written in panel.get("names", {}).items():
            words = written if isinstance(written, str) else written[0]
            words = words.replace("\n", " ").replace("both rules", both)
            known = find_style(label).name
            part = known.startswith(words) or known.endswith(words)
            assert label in series or part or words.startswith(known), words


def test_names_of_the_labels_page_are_those_of_pictures():
    page = (figures.RESULTS.parent / "docs" / "reference" / "labels.md").read_text()
    _, _, table = page.partition("## Names in pictures and tables")
    rows = [line.split("|")[1:3] for line in table.splitlines() if line.startswith("| `")]
    for labels, names in rows:
        for label, name in zip(re.findall(r"`(\w+)`", labels), names.split(";"), strict=True):
            base = "zero" if label.startswith("_") else ""
            expected = find_style(base + label).name.removeprefix("ZERO, " if base else "")
            assert name.strip() == expected, label


@pytest.mark.parametrize("name", [x for x in PICTURES if x != "paper_printed"])
def test_a_note_gives_the_seeds_and_the_round_of_the_rows(name):
    text = f"{PICTURES[name]['note']} {PICTURES[name]['title']} {PICTURES[name].get('pair_names')}"
    for panel in panels(PICTURES[name]):
        rows = figures.read_rows(panel)
        seeds = {x for column in ("seeds", "n") for x in rows.get_column(column, default=[])}
        at_one = "round" in rows.columns and panel["kind"] not in ("curves", "dots")
        rounds = set(rows["round"]) if at_one else set()
        for number in seeds | rounds:
            assert re.search(rf"\b{number:,}\b", text), number


def test_paired_dots_stand_at_the_numbers_of_the_table():
    picture = PICTURES["retry_aware_synthetic"] | {
        "pairs": {"acqb": "acqb_fallback", "rand_rout": "rand_rout_fallback", "zero": "acqb_rr"},
        "pair_names": ["without", "with"],
    }
    picture = {key: value for key, value in picture.items() if key not in ("label", "policies")}
    where = {"round": 5000, "K": 1, "arrival_rate": 0.8}
    figure = figures.draw(picture | {"panels": [{"where": where}]})
    (axis,) = figure.axes
    assert [text.get_text() for text in axis.get_yticklabels()] == ["ACQB", "random LLM"]
    table = pl.read_csv(figures.RESULTS / "tables" / "retry_aware_synthetic.csv").filter(**where)
    means = dict(table.select("policy", "gap_mean").iter_rows())
    dots = {
        (round(float(bar[0].get_xdata()[0]), 2), bar[0].get_markerfacecolor() == "white")
        for bar in axis.containers
    }
    expected = {(round(means[x], 2), x in picture["pairs"]) for x in means
                if x in ("acqb", "rand_rout", "acqb_fallback", "rand_rout_fallback")}  # fmt: skip
    assert dots == expected


def test_negative_scale_reverses_the_interval():
    (panel, _) = panels(PICTURES["synthetic_exploration_unscaled"])
    row = figures.read_rows(panel).row(0, named=True)
    assert row["low"] < row["mean"] < row["high"] < 0
    assert row["mean"] == pytest.approx(-1000 * row["acqb_minus"])


def test_labels_at_the_ends_of_lines_do_not_overlap():
    figure = figures.draw(PICTURES["synthetic_servers"])
    figure.draw_without_rendering()
    for axis in figure.axes:
        boxes = sorted((text.get_window_extent() for text in axis.texts), key=lambda box: box.y0)
        assert len(boxes) > 2
        for one, other in itertools.pairwise(boxes):
            assert other.y0 > one.y0 + 0.7 * one.height
