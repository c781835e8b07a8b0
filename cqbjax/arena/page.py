"""The arena's page: the scores of an entry, or of the whole board, in one file."""

import base64
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
from matplotlib.figure import Figure

from cqbjax.arena import template
from cqbjax.core.files import write_atomic
from cqbjax.core.labels import OPTIMAL
from cqbjax.figures import arena as drawing
from cqbjax.figures import files
from cqbjax.results.names import style_of

TEMPLATE = Path(__file__).with_name("arena.html.j2")
OWN = "tr.own > * { background: #fff3c4; } figure { margin: 1rem 0; }"
# The columns of a task's table, and what stands above each.
COLUMNS = {
    "gap": "Gap, queries", "score": "Score", "behind": "Behind the best", "time": "Time in system",
    "attempts": "Attempts", "gave_up": "Gave up", "dollars": "USD a query",
}  # fmt: skip
DOTS_AN_INCH = 110


class Shown(NamedTuple):
    """What the page shows.

    Attributes:
        title: of the page.
        table: of `board.table`, with `by`.
        tracks: name -> `scores.overall`.
        tasks: of each, `name`, `title`, `says` and `version`.
        notes: task -> what ran, as the board has it.
        figures: what each says -> the figure.
        cards: of policies: `label`, `says`, `sees`, `source`, `constants`, `wins`, `loses`,
            `docstring`.
        own: the label that stands out; None: none.
    """

    title: str
    table: pl.DataFrame
    tracks: Mapping[str, pl.DataFrame]
    tasks: Sequence[Mapping[str, Any]]
    notes: Mapping[str, Mapping[str, Any]]
    figures: Mapping[str, Figure]
    cards: Sequence[Mapping[str, str]]
    own: str | None


def build(shown: Shown, path: Path) -> Path:
    """Write the page: one file that opens from disk and asks nothing of a network."""
    filters = {"interval": interval, "called": lambda label: style_of(label).name}
    names = [name for name in COLUMNS if shown.table[name].is_not_null().any()]
    looks = [note["looks"].get(shown.own, 1) for note in shown.notes.values()]
    text = template.filled(
        TEMPLATE, filters, css=f"{template.styles()}\n{OWN}", title=shown.title, own=shown.own,
        tracks={name: frame.to_dicts() for name, frame in shown.tracks.items()},
        tasks=[_task(task, shown) for task in shown.tasks], columns=names,
        heads=["Policy", "Group", *(COLUMNS[name] for name in names), "From"],
        figures=[{"says": says, "data": _data(one)} for says, one in shown.figures.items()],
        cards=[_card(card, shown) for card in shown.cards], looks=max(looks, default=1),
        notes=json.dumps(shown.notes, indent=1, sort_keys=True),
    )  # fmt: skip
    write_atomic(path, text.encode())
    return path


def _task(task: Mapping[str, Any], shown: Shown) -> dict[str, Any]:
    """Return what the template says of a task."""
    note = shown.notes[task["name"]]
    rows = shown.table.filter(task=task["name"])
    names = {label: style_of(label).name for label in rows["policy"]}
    return {**task, "rows": rows.to_dicts(), "seeds": note["seeds"], "horizon": note["horizon"],
            "figure": _intervals(rows, names, "policy")}  # fmt: skip


def _card(card: Mapping[str, str], shown: Shown) -> dict[str, Any]:
    """Return what the template says of a policy."""
    names = {task["name"]: task["title"] for task in shown.tasks}
    own = shown.table.filter(policy=card["label"])
    return {**card, "figure": _intervals(own, names, "task")}


def _intervals(rows: pl.DataFrame, names: Mapping[str, str], by: str) -> str | None:
    """Return the figure of the rows that have a score; None where none has."""
    scored = rows.filter(pl.col("score").is_not_null(), pl.col("policy") != OPTIMAL)
    return _data(drawing.draw_intervals(scored, names, by)) if scored.height else None


def interval(ends: Sequence[float | None]) -> str:
    """Return a mean with its interval; a dash in place of either where there is none."""
    middle, low, high = ends
    if middle is None:
        return "–"
    digits = 4 if 1e-4 < abs(middle) < 0.01 else 2 if abs(middle) < 10 else 1
    # No sign before a zero.
    said, *others = (f"{round(one, digits) + 0.0:.{digits}f}" for one in (middle, low, high)
                     if one is not None)  # fmt: skip
    return f"{said} [{', '.join(others) or '–'}]"


def _data(figure: Figure) -> str:
    """Return a figure as an address that holds it."""
    png = files.png_of(figure, DOTS_AN_INCH)
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"
