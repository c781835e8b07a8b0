"""What a long sweep says of itself where nobody draws a bar."""

import io
import re

import pytest
from rich.console import Console

import cqbjax
from cqbjax.engine.progress import LogReporter, Reporter, show_progress
from cqbjax.policies import RandomRouting
from cqbjax.sources import Synthetic


def test_progress_in_a_log_is_one_line_per_minute_with_speed_and_remaining_time():
    written, now = io.StringIO(), [0.0]
    lines = LogReporter(Console(file=written, width=200), lambda: now[0])
    lines.expect(1_000_000)
    lines.set_activity("compiling", "acqb")
    for second in range(1, 181):
        now[0] = float(second)
        lines.advance(1_000)
    assert written.getvalue().splitlines() == [
        "60,000 of 1,000,000 rounds, 1,000 a second, compiling acqb, about 16 min left",
        "120,000 of 1,000,000 rounds, 1,000 a second, compiling acqb, about 15 min left",
        "180,000 of 1,000,000 rounds, 1,000 a second, compiling acqb, about 14 min left",
    ]
    with lines.track_steps("fitting knn", 8) as step:
        now[0] = 240.0
        step(3)
    assert (
        written.getvalue()
        .splitlines()[-1]
        .startswith("180,000 of 1,000,000 rounds, 750 a second, fitting knn 3 of 8")
    )


def test_progress_line_before_simulation_omits_the_speed():
    written, now = io.StringIO(), [0.0]
    lines = LogReporter(Console(file=written, width=200), lambda: now[0])
    now[0] = 61.0
    lines.set_activity("compiling", "acqb")
    assert written.getvalue() == "compiling acqb\n"


@pytest.mark.parametrize("verbose", [False, True])
def test_verbose_progress_prints_details(verbose):
    screen = io.StringIO()
    with show_progress(Console(file=screen), verbose) as progress:
        progress.log("64 a chunk")
    assert screen.getvalue() == "64 a chunk\n" * verbose


def test_files_are_not_treated_as_terminals():
    with show_progress(Console(file=io.StringIO())) as progress:
        assert isinstance(progress, LogReporter)


@pytest.mark.slow
def test_sweep_shows_a_progress_bar_on_request(monkeypatch, capsys):
    policies, source = {"random": RandomRouting()}, Synthetic(num_servers=3, dim=2)
    settings = {"arrival_rate": [0.4], "num_seeds": 2, "horizon": 16}
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich's word for a terminal
    cqbjax.sweep(policies, source, **settings)
    assert capsys.readouterr().err == ""
    cqbjax.sweep(policies, source, progress=True, **settings)
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", capsys.readouterr().err)
    assert "64/64" in shown and "running" in shown


def test_remaining_time_covers_all_sweeps_from_the_start():
    whole = Reporter()
    whole.reserve(100)
    assert whole.total == 100
    for rounds in (40, 30):
        whole.expect(rounds)
        whole.advance(rounds)
    assert whole.total == 100
    whole.expect(50)  # twenty are runs again with more slots
    assert whole.total == 120
    whole.expect(-10)  # all of a batch outgrew its slots
    assert whole.total == 110
    early = Reporter()
    early.reserve(20)
    early.expect(0)
    early.expect(-5)
    early.expect(20)
    assert early.total == 15, "what is taken back is not what was expected"
    whole.advance(40)
    whole.release()
    assert (whole.total, whole.done) == (110, 110)
    whole.reserve(30)  # of which ten are another point's runs
    whole.expect(20)
    whole.advance(20)
    whole.release()
    assert (whole.total, whole.done) == (130, 130)
