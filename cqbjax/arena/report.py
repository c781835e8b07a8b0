"""What the arena writes: the table, scores over tasks, pictures, and a page that holds them all."""

import base64
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jinja2
import polars as pl
from rich.console import Console

from cqbjax.arena import board as boards
from cqbjax.arena import figures, scores
from cqbjax.arena.board import Board
from cqbjax.arena.scores import RANDOM
from cqbjax.arena.tasks import list_tasks
from cqbjax.core.files import write_atomic
from cqbjax.core.labels import OPTIMAL
from cqbjax.figures.files import encode_png, save_figure
from cqbjax.results import tables
from cqbjax.results.policy_styles import find_style

HERE = Path(__file__).resolve().parent
STYLES = HERE / "page.css"  # of all pages
TABLE = "table.csv"
DOTS_PER_INCH, PAGE_DOTS_PER_INCH = 90, 110  # of the pictures, which are wide
MOST_ROWS = 30  # policies of a picture, the best ones
# The columns of a task's table on the page, with their headings.
COLUMNS = {
    "gap": "Gap, queries", "score": "Score", "behind": "Behind the best",
    "time_per_arrival": "Time in system", "attempts": "Attempts", "gave_up": "Gave up",
    "dollars": "USD per query",
}  # fmt: skip


def show_board(folder: Path, console: Console) -> None:
    """Write the shipped board as a table, pictures and a page.

    Raises:
        ValueError: the package has no board.
    """
    board = boards.read_board()
    if not board.notes:
        raise ValueError("no board comes with this package: run one with `cqbjax arena board`")
    empty = board._replace(rows=board.rows.clear(), notes={})
    written = write_report(board, empty, folder, None, console, boards.BOARD)
    console.print(", ".join(map(str, written)), markup=False, soft_wrap=True)


def write_report(
    made: Board, board: Board, folder: Path, entrant: str | None, console: Console,
    by: str = boards.RUN,
) -> list[Path]:  # fmt: skip
    """Write table, numbers, pictures and page of results, and print the scores.

    Args:
        made: the new results.
        board: the shipped board; comparable results are added from it.
        folder: where to write.
        entrant: the label that entered; None: all of the board.
        console: where the scores are printed.
        by: where `made` is from.
    """
    rows = boards.add_known(made, board, by)
    table, scored = boards.tabulate_policies(rows), scores.add_scores(rows.drop("by"))
    tables.write_csv(folder / TABLE, table)
    written = [folder / TABLE, *boards.write_board(made, folder)]
    on_prompts = [task.name for task in list_tasks() if task.on_prompts]
    tracks = {
        name: scores.aggregate_scores(scored.filter(pl.col("policy") != OPTIMAL), of_track)
        for name, of_track in boards.list_tracks(scored, on_prompts).items()
    }
    overall = next(iter(tracks.values()))
    titles = {task.name: task.title for task in list_tasks()}
    figure = figures.draw_scores(select_best(table, entrant), overall, titles, entrant)
    written.append(save_figure(figure, folder / "scores", DOTS_PER_INCH))
    for name, of_track in tracks.items():
        if of_track.height:
            tables.print_table(of_track, f"Interquartile mean of scores, {name}", console)
    if entrant is not None:
        names = boards.list_columns(("gap", "score", "behind"))
        own = table.filter(policy=entrant).select("task", "group", "standing", "seeds", *names)
        tables.print_table(own, f"{entrant}, task by task", console)
    png = encode_png(figure, PAGE_DOTS_PER_INCH)
    text = fill_template(
        HERE / "arena.html.j2",
        {"interval": format_interval, "style_name": lambda label: find_style(label).name},
        css=STYLES.read_text(), entrant=entrant,
        title=f"{entrant} in the arena" if entrant else "The arena",
        tracks={name: frame.to_dicts() for name, frame in tracks.items()},
        columns=COLUMNS,
        figure=f"data:image/png;base64,{base64.b64encode(png).decode()}",
        tasks=[
            task._asdict() | made.notes[task.name]
            | {"rows": table.filter(task=task.name).to_dicts()}
            for task in list_tasks() if task.name in made.notes
        ],
        notes=json.dumps(made.notes, indent=1, sort_keys=True),
    )  # fmt: skip
    write_atomic(folder / "index.html", text.encode())
    return [*written, folder / "index.html"]


def select_best(table: pl.DataFrame, entrant: str | None) -> pl.DataFrame:
    """Return the rows of the best policies on average, the ends of the scale, and the entrant."""
    means = table.drop_nulls("score").group_by("policy").agg(pl.col("score").mean())
    best = means.sort("score", "policy", descending=[True, False])["policy"].to_list()[:MOST_ROWS]
    return table.filter(pl.col("policy").is_in([*best, OPTIMAL, RANDOM, *filter(None, [entrant])]))


def format_interval(ends: Sequence[float | None]) -> str:
    """Return a mean with its interval, low and high; a dash if either is missing."""
    mean = ends[0]
    if mean is None:
        return "–"
    digits = 4 if 1e-4 < abs(mean) < 0.01 else 2 if abs(mean) < 10 else 1
    # Adding zero removes the sign of a negative zero.
    text, *interval = (f"{round(x, digits) + 0.0:.{digits}f}" for x in ends if x is not None)
    return f"{text} [{', '.join(interval) or '–'}]"


def fill_template(
    template: Path, filters: dict[str, Callable[..., Any]] | None = None, **values: Any
) -> str:
    """Return a Jinja template, filled; a name without a value raises."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(template.parent),
        autoescape=jinja2.select_autoescape(["j2", "html"]),
        trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    environment.filters |= filters or {}
    return environment.get_template(template.name).render(**values)
