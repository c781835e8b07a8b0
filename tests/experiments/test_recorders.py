"""A recorder that a study's configuration asks for: in its arrays, table, figure and page."""

import inspect
import sys

import pytest
import waiting
import yaml
from composing import refusal_of, run_command
from tiers import cases

from cqbjax.figures.curves import draw_curves
from cqbjax.results import stored_points
from cqbjax.results.frame import aggregate_points
from reproduction import extracts
from reproduction.page import build, plots

pytestmark = pytest.mark.slow

MODULE = inspect.getsource(waiting)
WORDS = (
    "name=recorded", "policy=[random]", "num_servers=3", "dim=2", "K=[1,2]", "num_seeds=2",
    "horizon=40", "table_rounds=[40]", "arrival_rate=0.4",
    "record=[{_target_:my_recorder.SumOfWaits},{_target_:my_recorder.DepartureRounds}]",
)  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "my_recorder.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_user_defined_recorders_appear_in_every_output_of_a_study(folder):
    done = run_command("run", *WORDS)
    assert not done.returncode, done.stderr
    points = stored_points(folder / "results" / "data" / "recorded")
    assert len(points) == 2
    for one in points:
        assert one.point["left"].dims == ("policy", "arrival_rate", "seed", "query")
        assert one.point["left"].sizes["query"] == 40 and one.point["waited"].dims[-1] == "round"
        assert one.point["waited"].attrs["units"] == "rounds"
        assert float(one.point["waited"].isel(round=-1).max()) > 0

    table = (folder / "results" / "tables" / "recorded.csv").read_text().splitlines()
    assert {"waited", "waited_low", "waited_high"} <= set(table[0].split(","))
    assert "| waited |" in (folder / "results" / "tables" / "recorded.md").read_text()
    datasets = [one.point for one in points]
    frame = aggregate_points(datasets, ["waited"])
    mean = float(datasets[0]["waited"].isel(round=-1).sel(policy="random").mean())
    assert frame.filter(policy="random", K=1)["mean"].to_list() == pytest.approx([mean])

    figure = draw_curves(datasets, ["gap", "regret", "waited"])
    drawn = [axes for axes in figure.axes if axes.get_ylabel() == "Rounds\nwaited"]
    assert len(drawn) == 2 and len(figure.axes) == 6
    assert any(line.get_ydata()[-1] == pytest.approx(mean) for line in drawn[0].lines)

    config = yaml.safe_load(points[0].config)
    made = extracts.extract(points, config)
    extracts.write(made, folder / "extract")
    made = extracts.read(folder / "extract")
    page = plots.draw([made])
    shown = [panel.shows for panel in page.figures["recorded"].panels]
    assert shown.count("Rounds waited") == 2 and '"rounds"' in page.scripts[made.notes["name"]]
    assert build.tabulate_numbers({"recorded": made}).count("waited") >= 2

    again = run_command("run", *WORDS)
    assert "4 of 4" in again.stdout or "2 of 2" in again.stdout, "stored: not run again"
    (folder / "my_recorder.py").write_text(MODULE.replace("rounds", "slots"))
    sys.modules.pop("my_recorder")
    edited = run_command("run", *WORDS)
    assert "not run again" not in edited.stdout, "an edited recorder is another one"


WRONG = [
    (["record=waited"], "record=waited must be a list of names or of {_target_: module.Class}"),
    (["record=[{a: 1}]"], "must be a list of names or of {_target_: module.Class}"),
    (
        ["experiment=theory_switching", "record=[{_target_: my_recorder.SumOfWaits}]"],
        "is of a sweep, and Switching is none: leave it out",
    ),
    (
        ["policy=[random]", "record=[{_target_: my_recorder.Nobody}]"],
        "Nobody",
    ),
]
QUICK = (["record=waited"],)


@pytest.mark.parametrize(("words", "error_text"), cases(WRONG, QUICK, several=True))
def test_invalid_recorders_are_rejected(words, error_text, folder):
    message = refusal_of(words)
    assert error_text in message and len(message.splitlines()) == 1, message
