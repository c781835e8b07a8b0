"""The arena's page in a real Chromium: wide and narrow, nothing cut off, nothing asked of a net."""

import shutil

import numpy as np
import polars as pl
import pytest
from absent import skip_or_fail
from composing import run_command

from cqbjax.arena import board as boards
from cqbjax.arena.report import format_interval, write_report
from cqbjax.experiments import display

pytestmark = pytest.mark.slow  # a browser starts
LABELS = ("optimal", "acqb", "linucb", "random", "Mine")
TASKS = ("paper", "drift", "retries")


def board():
    """Runs of five policies in three tasks, made up."""
    draw = np.random.default_rng(0)
    rows = [
        {
            "task": task, "policy": label, "seed": seed, "gap": gap * 10 + float(draw.normal()),
            "queue": 1.0, "served": 9, "time": 2.0, "time_per_arrival": 3.0, "attempts": 1.5,
            "gave_up": 0.0, "dollars": 0.002 if task == "retries" else None,
        }
        for task in TASKS for gap, label in enumerate(LABELS) for seed in range(10)
    ]  # fmt: skip
    frame = pl.DataFrame(rows, schema=boards.SCHEMA)
    frame = frame.with_columns(gap=pl.when(policy="optimal").then(0.0).otherwise("gap"))
    note = {
        "version": 1, "content": "c", "policies": dict.fromkeys(LABELS, "k"), "known": [],
        "seeds": 10, "horizon": 40, "first_seed": 2_000_000, "by": {},
    }  # fmt: skip
    return boards.Board(frame, dict.fromkeys(TASKS, note))


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("arena")
    none = boards.Board(pl.DataFrame(schema=boards.SCHEMA), {})
    write_report(board(), none, folder, "Mine", display.make_console())
    return folder / "index.html"


def test_arena_page_ranks_the_policies(written):
    text = written.read_text()
    assert "src=" not in text.replace('src="data:', "") and "://" not in text
    assert "Mine: 4th of 4 over all tasks" in text and text.count("<td>4th of 4</td>") >= len(TASKS)
    # Constant columns are named once, and empty ones left out.
    assert text.count("in all rows: Time in system 3.00, Attempts 1.50") == len(TASKS)
    assert text.count(">USD per query<") == 0 and text.count(">Gap, queries<") == len(TASKS)
    assert "Mine in the arena" in text and "Preferences that jump" in text
    assert text.count('class="entrant"') == 2 + len(TASKS)
    table = pl.read_csv(written.parent / "table.csv").filter(task="paper").sort("gap")
    assert table["policy"].to_list() == ["optimal", "acqb", "linucb", "random", "Mine"]
    assert table["group"].to_list() == [None, 1, 2, 3, 4]
    (row,) = table.filter(policy="acqb").to_dicts()
    ends = [row["score"], row["score_low"], row["score_high"]]
    mean, interval = format_interval(ends).split(" ", 1)
    assert f">{mean} <small>{interval}</small></td>" in text


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """The page of the board that comes with the package."""
    folder = tmp_path_factory.mktemp("shown")
    done = run_command("arena", "show", f"out={folder}")
    assert done.returncode == 0, done.stderr
    return folder / "shown" / "index.html"


def test_page_shows_the_shipped_board(shown):
    text, known = shown.read_text(), boards.read_board()
    assert text.count("<h3 id=") == len(known.notes) and text.count("<img ") == 1
    assert "The task tests what a policy does with a retrial." in text, "what a task's file says"
    assert {*pl.read_csv(shown.parent / "table.csv")["by"]} == {"board"}
    assert shown.stat().st_size < 2_000_000


@pytest.mark.parametrize("width", [400, 1600])
@pytest.mark.parametrize("which", ["written", "shown"])
def test_arena_page_fits_the_screen_width(which, width, request):
    written = request.getfixturevalue(which)
    webdriver = pytest.importorskip("selenium.webdriver")
    binary = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
    if binary is None:
        skip_or_fail("no Chromium")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(word)
    with webdriver.Chrome(options) as browser:
        browser.set_window_size(width, 900)
        browser.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False},
        )
        browser.get(written.as_uri())
        over = browser.execute_script(
            "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        assert over <= 0, "the page itself does not scroll sideways"
        sizes = browser.execute_script(
            "return [...document.images].map(one => one.complete ? one.naturalWidth : 0)"
        )
        assert len(sizes) == 1 and min(sizes) > 400
        browser.get_screenshot_as_file(str(written.parent / f"page_{width}.png"))


@pytest.mark.parametrize(
    ("ends", "message"),
    [
        ((None, None, None), "–"),
        ((-1e-17, -0.004, 0.004), "0.00 [0.00, 0.00]"),
        ((0.5, None, None), "0.50 [–]"),
        ((12.34, 10.0, 15.0), "12.3 [10.0, 15.0]"),
        ((0.00234, 0.0021, 0.0026), "0.0023 [0.0021, 0.0026]"),
    ],
)
def test_numbers_are_printed_with_their_interval(ends, message):
    assert format_interval(ends) == message
