"""What the arena writes: the table, scores over tasks, pictures, and a page that holds them all."""

import base64
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import polars as pl
from matplotlib.figure import Figure
from rich.console import Console

from cqbjax.arena import board as boards
from cqbjax.arena import figures, scores
from cqbjax.arena.board import Board
from cqbjax.arena.scores import RANDOM
from cqbjax.arena.tasks import Composer, list_tasks, read_comment
from cqbjax.core.files import write_atomic
from cqbjax.core.labels import OPTIMAL
from cqbjax.core.types import read_needs
from cqbjax.figures.files import encode_png, save_figure
from cqbjax.offline import OfflinePolicy
from cqbjax.results import tables
from cqbjax.results.policy_styles import find_style, sort_policies

HERE = Path(__file__).resolve().parent
STYLES = HERE / "page.css"  # of all pages
TABLE = "table.csv"
TAUS = np.linspace(-0.2, 1.0, 61)
DOTS_PER_INCH, PAGE_DOTS_PER_INCH = 90, 110  # of the pictures, which are wide
MOST_PROFILES = 8  # more lines cannot be distinguished by eye
MOST_ROWS = 30  # policies of a picture, the best ones
# The columns of a task's table on the page, with their headings.
COLUMNS = {
    "gap": "Gap, queries", "score": "Score", "behind": "Behind the best",
    "time_per_arrival": "Time in system", "attempts": "Attempts", "gave_up": "Gave up",
    "dollars": "USD per query",
}  # fmt: skip


def show_board(folder: Path, composer: Composer, console: Console) -> None:
    """Write the shipped board as a table, pictures and a page.

    Raises:
        ValueError: the package has no board.
    """
    board = boards.read_board()
    if not board.notes:
        raise ValueError("no board comes with this package: run one with `cqbjax arena board`")
    empty = board._replace(rows=board.rows.clear(), notes={})
    written = write_report(board, empty, folder, None, composer, console, boards.BOARD)
    console.print(", ".join(map(str, written)), markup=False, soft_wrap=True)


def write_report(
    made: Board, board: Board, folder: Path, entrant: str | None, composer: Composer,
    console: Console, by: str = boards.RUN,
) -> list[Path]:  # fmt: skip
    """Write table, numbers, pictures and page of results, and print the scores.

    Args:
        made: the new results.
        board: the shipped board; comparable results are added from it.
        folder: where to write.
        entrant: the label that entered; None: all of the board, with a card for each policy.
        composer: composes and instantiates the policies of the cards.
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
    pictures = {
        "Each policy in each task, and over all tasks":
            figures.draw_scores(select_best(table, entrant), overall, titles, entrant),
        "Performance profiles over all tasks: the share of runs above each score":
            figures.draw_profiles(_compute_profiles(scored, overall, entrant), TAUS, entrant),
    }  # fmt: skip
    for name, figure in zip(("scores", "profiles"), pictures.values(), strict=True):
        written += save_figure(figure, folder / name, DOTS_PER_INCH)
    for name, of_track in tracks.items():
        if of_track.height:
            tables.print_table(of_track, f"Interquartile mean of scores, {name}", console)
    if entrant is not None:
        names = boards.list_columns(("gap", "score", "behind"))
        own = table.filter(policy=entrant).select("task", "group", "standing", "seeds", *names)
        tables.print_table(own, f"{entrant}, task by task", console)
    text = fill_template(
        HERE / "arena.html.j2",
        {"interval": format_interval, "style_name": lambda label: find_style(label).name},
        css=STYLES.read_text(), entrant=entrant,
        title=f"{entrant} in the arena" if entrant else "The arena",
        tracks={name: frame.to_dicts() for name, frame in tracks.items()},
        tasks=_describe_tasks(table, made, entrant), columns=COLUMNS,
        figures=[{"caption": text, "data": _embed(one)} for text, one in pictures.items()],
        cards=[] if entrant else _describe_policies(table, made, composer),
        looks=max((note["looks"].get(entrant, 1) for note in made.notes.values()), default=1),
        notes=json.dumps(made.notes, indent=1, sort_keys=True),
    )  # fmt: skip
    write_atomic(folder / "index.html", text.encode())
    return [*written, folder / "index.html"]


def _compute_profiles(
    scored: pl.DataFrame, overall: pl.DataFrame, entrant: str | None
) -> dict[str, Any]:
    """Return the profiles, with intervals, of the best policies, random routing and the entrant."""
    best = overall["policy"].to_list()[:MOST_PROFILES]
    tasks = scored.filter(pl.col("score").is_not_null())["task"].unique().sort().to_list()
    profiles = {}
    for label in dict.fromkeys([*best, *filter(None, (entrant, RANDOM))]):
        matrix = scores.score_matrix(scored, label, tasks) if tasks else None
        if matrix is not None:
            ends = scores.bootstrap(matrix, lambda runs: scores.profile(runs, TAUS))
            profiles[label] = (scores.profile(matrix, TAUS), *ends)
    return profiles


def select_best(table: pl.DataFrame, entrant: str | None) -> pl.DataFrame:
    """Return the rows of the best policies on average, the ends of the scale, and the entrant."""
    means = table.drop_nulls("score").group_by("policy").agg(pl.col("score").mean())
    best = means.sort("score", "policy", descending=[True, False])["policy"].to_list()[:MOST_ROWS]
    return table.filter(pl.col("policy").is_in([*best, OPTIMAL, RANDOM, *filter(None, [entrant])]))


def _describe_tasks(table: pl.DataFrame, made: Board, entrant: str | None) -> list[dict[str, Any]]:
    """Return what the page shows of each task."""
    described = []
    for task in list_tasks():
        if task.name in made.notes:
            rows, note = table.filter(task=task.name), made.notes[task.name]
            drawn = select_best(rows, entrant)
            names = {label: find_style(label).name for label in drawn["policy"]}
            scored = drawn.filter(pl.col("score").is_not_null(), pl.col("policy") != OPTIMAL)
            picture = figures.draw_intervals(scored, names) if scored.height else None
            described.append(task._asdict() | {
                "rows": rows.to_dicts(), "seeds": note["seeds"], "horizon": note["horizon"],
                "figure": picture and _embed(picture),
            })  # fmt: skip
    return described


def _describe_policies(
    table: pl.DataFrame, made: Board, composer: Composer
) -> list[dict[str, Any]]:
    """Return what the page shows of each policy: its docstring, constants, best and worst tasks."""
    cards, labels = [], sort_policies({*made.rows["policy"]} - {OPTIMAL})
    words = f"policy=[{','.join(labels)}]"
    tasks = ("paper", "paretobandit")
    synthetic, config = (composer.compose([f"arena={task}", words]) for task in tasks)
    policies = {label: composer.make(node) for label, node in config.policy.items()}
    for label in labels:
        rows, policy = table.filter(policy=label), policies[label]
        worst = rows.drop_nulls("score").sort("score").head(1)
        # A router with a schedule is described by its router.
        described = type(getattr(policy, "router", policy))
        docstring = inspect.getdoc(described) or ""
        cards.append({
            "label": label, "docstring": docstring,
            "description": read_comment("policy", label) or docstring.split("\n\n")[0],
            "source": f"{described.__module__}.{described.__qualname__}",
            "constants": _describe_constants(synthetic.policy[label], config.policy[label]),
            "sees": _describe_inputs(policy),
            "wins": ", ".join(rows.filter(pl.col("standing") != scores.UNDECIDED, group=1)["task"]),
            "loses": "".join(f"{task} (score {score:.2f})"
                             for task, score in worst.select("task", "score").iter_rows()),
        })  # fmt: skip
    return cards


def _describe_constants(synthetic: Mapping[str, Any], prompts: Mapping[str, Any]) -> str:
    """Return a policy's constants on synthetic data, and those that differ on prompts."""

    def join(constants: Mapping[str, Any]) -> str:
        return ", ".join(
            f"{key}={'null' if value is None else value}" for key, value in constants.items()
            if key not in ("_target_", "router")  # the card has them elsewhere
        )  # fmt: skip

    differing = {key: v for key, v in prompts.items() if v != synthetic.get(key)}
    return "; on prompts ".join(filter(None, (join(synthetic), join(differing))))


def _describe_inputs(policy: Any) -> str:
    """Return what a policy bases its decisions on."""
    if isinstance(policy, OfflinePolicy):
        return "prompts, through what it learnt from the seed's offline split"
    needs = read_needs(policy)
    seen = ["the queue", "contexts" if needs.contexts else "no contexts"]
    return ", ".join([*seen, *["the servers offered to each query"] * needs.offer_counts])


def _embed(figure: Figure) -> str:
    """Return a figure as a data URI."""
    png = encode_png(figure, PAGE_DOTS_PER_INCH)
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


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
