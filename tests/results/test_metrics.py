"""An array that a recorder of one's own stored is shown everywhere, by what its attributes say."""

import io

import numpy as np
import pytest
from fabricated import fabricate
from rich.console import Console

from cqbjax.core.labels import join_names
from cqbjax.figures import curves
from cqbjax.results import frame, tables
from cqbjax.results.files import StoredPoint
from cqbjax.results.metrics import STANDARD, list_metrics, list_panels
from cqbjax.results.table_text import split_table
from reproduction import extracts
from reproduction.paper import claims

CONFIG = {"table_rounds": [30, 60]}
WORDS = {"long_name": "Answered share", "units": "answers a round", "better": "more"}


def point(**attributes):
    """A point with a fifth array, in which ACQB is 1 above the others at every seed and round."""
    made = fabricate(("optimal", "acqb", "random"), num_seeds=5, **attributes)
    above = (made["policy"] == "acqb").astype(float)
    made["answered"] = (above + made["departures"] / made["round"]).transpose(
        "policy", "arrival_rate", "seed", "round"
    )
    made["answered"].attrs = WORDS
    return made


def extract():
    return extracts.extract([StoredPoint(point(), {"point": "K=1", "varied": {}}, "")], CONFIG)


@pytest.mark.parametrize("make", [tables.gap_table, tables.throughput_table])
def test_user_defined_metrics_appear_in_every_table_with_an_interval(make):
    made = point()
    (row,) = make([made], rounds=[60]).filter(policy="random").to_dicts()
    at = made["answered"].sel(policy="random", round=60, arrival_rate=0.7)
    assert row["answered"] == pytest.approx(float(at.mean()))
    assert row["answered_low"] < row["answered"] < row["answered_high"]
    assert "answered" in frame.aggregate_points([made], ["answered"])["metric"].to_list()


def test_user_defined_metrics_have_a_separate_panel():
    made = point()
    assert list_panels([made], {}) == ["gap", "regret", "answered"]
    drawn = curves.draw_curves([made], list_panels([made], {}))
    assert [panel.get_ylabel() for panel in drawn.axes][2] == "Answered\nshare"
    np.testing.assert_allclose(
        drawn.axes[2].get_lines()[0].get_ydata(),
        made["answered"].sel(policy="acqb", arrival_rate=0.7).mean("seed"),
    )


@pytest.mark.slow
def test_user_defined_metrics_appear_on_the_report_page():
    pytest.importorskip("bokeh")
    from reproduction.page import build, plots

    made = extract()
    (drawn,) = plots.draw([made]).figures.values()
    assert [panel.shows for panel in drawn.panels][2] == WORDS["long_name"]
    assert build.tabulate_numbers({"synthetic": made}).count("answered") >= 2


def test_claims_use_the_direction_of_a_metric():
    asked = {"policy": "acqb", "others": ["random"], "metrics": ["answered"]}
    found = claims.compare_paired(extract(), asked)
    assert (found.yes, found.against, found.all) == (1, 0, 1)


def test_per_run_arrays_are_metrics_and_per_query_arrays_are_not():
    made = point()
    made["prompts"] = ("policy", "query"), np.zeros((3, 4))
    made["reached"] = made["answered"].isel(round=-1, drop=True)
    assert set(list_metrics([made])) >= {"answered", "reached"}
    assert "prompts" not in list_metrics([made])
    rows = frame.summarise(frame.tabulate_runs([made], ["reached"], [30, 60]))
    assert rows["round"].to_list() == [60] * 3, "what a run's end says is said of its end alone"
    (early, late) = tables.gap_table([made], [30, 60]).filter(policy="acqb").to_dicts()
    assert early["reached"] is None and late["reached"] > 1


def test_many_metrics_are_divided_into_tables_that_fit_a_page(tmp_path):
    made = point()
    for number in range(7):
        made[f"of_round_{number}"] = made["answered"] + number
        made[f"of_run_{number}"] = made["answered"].isel(round=-1, drop=True) + number
    own, frame_ = list_metrics([made]), tables.gap_table([made], [30, 60])
    shared, parts = split_table(frame_, {k: m for k, m in own.items() if k not in STANDARD})
    assert "K 1" in shared and [len(part.headers) for part in parts[1:]] == [7, 5, 7, 4]
    assert [len(part.rows) for part in parts] == [6, 6, 6, 3, 3], "of a run's end: at its end"
    assert "answered: Answered share, answers a round" in parts[1].legend
    _, markdown = tables.save_table(frame_, tmp_path / "many", "Many", own)
    text = markdown.read_text()
    assert max(line.count("|") for line in text.splitlines()) == 8
    assert set(frame_.columns) == set(
        (tmp_path / "many.csv").read_text().splitlines()[0].split(",")
    )
    assert len(split_table(frame_, {})[1]) == 1
    few = tables.gap_table([point()], [60])
    assert len(split_table(few, own)[1]) == 1, "one among the others"


def test_several_experiments_have_a_column_of_names():
    both = [point(), point(experiment="another")]
    table = frame.aggregate_points(both, ["gap"])
    assert sorted(table["experiment"].unique()) == ["another", "synthetic"]
    assert table.height == 2 * frame.aggregate_points(both[:1], ["gap"]).height
    assert {"experiment"} <= {*tables.gap_table(both, [60]).columns}
    assert "experiment" not in tables.gap_table(both[:1], [60]).columns


def test_table_headers_keep_llm_names_verbatim(tmp_path):
    made, names = point(), ["a, b", "$x$ | [red]", "日本語"]
    made.attrs["servers"] = join_names(names)
    for number in range(3):
        made[f"traffic_{number}"] = made["answered"] / 3
        made[f"traffic_{number}"].attrs |= {"long_name": "Share of traffic", "server": number}
    metrics, rows = list_metrics([made]), tables.gap_table([made], [60])
    assert [metrics[f"traffic_{number}"].server for number in range(3)] == names
    (_, part) = split_table(rows, metrics)[1]
    assert part.headers[-3:] == [f"traffic {name}" for name in names]
    assert part.legend.count("traffic: Share of traffic") == 1
    console = Console(file=io.StringIO(), width=80)
    tables.print_table(rows, "LLMs", console, metrics)
    assert all(word in console.file.getvalue() for name in names for word in name.split())
