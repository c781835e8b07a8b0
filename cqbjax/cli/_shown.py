"""What the arena shows of runs: the table, the scores over tasks, the pictures, the page."""

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from rich.console import Console

from cqbjax.arena import page
from cqbjax.cli import _multirun, _tasks
from cqbjax.cli._hydra import make_policies
from cqbjax.core.labels import OPTIMAL
from cqbjax.core.types import is_blind, is_retry_aware
from cqbjax.figures import arena as drawing
from cqbjax.figures import files
from cqbjax.offline import Learnt
from cqbjax.results import board as boards
from cqbjax.results import scores, tables
from cqbjax.results.board import Board
from cqbjax.results.names import in_order

TABLE = "table.csv"
# Where a row is from, beside `boards.SAME_KEY` and `boards.SAME_DRAWS`.
RUN, CAME = "run", "board"
TAUS = np.linspace(-0.2, 1.0, 61)
DOTS_AN_INCH = 90  # of the pictures, which are wide
# Profiles of more policies cannot be told apart by eye.
MOST_DRAWN = 8


def compared(made: Board, known: Board, by: str = RUN) -> pl.DataFrame:
    """Return the runs with those of the board beside them, and `by`: where each row is from."""
    parts = []
    for (name,), run in made.rows.partition_by("task", as_dict=True).items():
        fit = set(made.notes[str(name)]["known"])
        parts.append(run.with_columns(by=pl.lit(by)))
        # A board of other rounds is of other runs.
        if _of_today(made, known, str(name)):
            parts.append(boards.beside(known, run, fit))
    return pl.concat(parts)


def _of_today(made: Board, known: Board, task: str) -> bool:
    """Tell whether the board has a task as it was run: the same version, rounds and first seed."""
    there, here = known.notes.get(task), made.notes[task]
    return there is not None and all(
        there[key] == here[key] for key in ("version", "horizon", "first_seed")
    )


def tabled(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the arena's table of rows from `compared`."""
    by = rows.group_by("task", "policy").agg(pl.col("by").first())
    return boards.table(rows.drop("by")).join(by, on=("task", "policy"), maintain_order="left")


def write(
    made: Board, known: Board, folder: Path, own: str | None, console: Console, by: str = RUN
) -> list[Path]:
    """Write table, numbers, pictures and page of runs, and print how policies stand.

    Args:
        made: what ran.
        known: the board that came with the package, where it may stand beside.
        folder: where to write.
        own: the label that entered; None: all of the board.
        console: where the scores are printed.
        by: where `made` is from.
    """
    rows = compared(made, known, by)
    table, scored = tabled(rows), scores.scored(rows.drop("by"))
    tables.write_csv(folder / TABLE, table)
    written = [folder / TABLE, *boards.write(made, folder)]
    tracks = {
        name: scores.overall(scored.filter(pl.col("policy") != OPTIMAL), of_track)
        for name, of_track in boards.tracks(scored, _tasks.on_prompts()).items()
    }
    titles = {task.name: task.title for task in _tasks.listed()}
    first = next(iter(tracks.values()))
    pictures = {
        "Each policy in each task, and over all tasks": drawing.draw_scores(
            table, first, titles, own
        ),
        "Performance profiles over all tasks: the share of runs above each score":
            drawing.draw_profiles(_profiles(scored, first, own), TAUS, own),
    }  # fmt: skip
    for name, figure in zip(("scores", "profiles"), pictures.values(), strict=True):
        written += files.save(figure, folder / name, DOTS_AN_INCH)
    _print(table, tracks, own, console)

    tasks = [task._asdict() for task in _tasks.listed() if task.name in made.notes]
    title = f"{own} in the arena" if own else "The arena"
    cards = [] if own else _cards(table, made)
    shown = page.Shown(title, table, tracks, tasks, made.notes, pictures, cards, own)
    return [*written, page.build(shown, folder / "index.html")]


def _profiles(scored: pl.DataFrame, overall: pl.DataFrame, own: str | None) -> dict[str, Any]:
    """Return the profiles of the best policies over all tasks, of random routing and of one's own.

    Each with its interval.
    """
    ranked = overall["policy"].to_list()
    drawn = dict.fromkeys([*ranked[:MOST_DRAWN], *(one for one in (own, scores.RAND) if one)])
    tasks = scored.filter(pl.col("score").is_not_null())["task"].unique().sort().to_list()
    made = {}
    for label in drawn:
        of_label = scores.matrix(scored, label, tasks) if tasks else None
        if of_label is not None:
            ends = scores.bootstrapped(of_label, lambda runs: scores.profile(runs, TAUS))
            made[label] = (scores.profile(of_label, TAUS), *ends)
    return made


def _print(
    table: pl.DataFrame, tracks: dict[str, pl.DataFrame], own: str | None, console: Console
) -> None:
    """Print the scores over tasks, and task by task those of one's own policy."""
    for name, overall in tracks.items():
        if overall.height:
            tables.print_table(overall, f"Interquartile mean of scores, {name}", console)
    if own is not None:
        mine = table.filter(policy=own).select(
            "task", "group", "seeds", *boards.scores_of("gap"), *boards.scores_of("score"),
            *boards.scores_of("behind"),
        )  # fmt: skip
        tables.print_table(mine, f"{own}, task by task", console)


def _cards(table: pl.DataFrame, made: Board) -> list[dict[str, str]]:
    """Return a card a policy: what its docstring and its configuration say, where it wins."""
    cards, labels = [], in_order({*made.rows["policy"]} - {OPTIMAL})
    words = f"policy=[{','.join(labels)}]"
    with _multirun.initialised():
        jobs = _multirun.compose([["arena=paper", words], ["arena=paretobandit", words]])
    plain, config = (job.config for job in jobs)
    policies = make_policies(config.policy)
    for label in labels:
        own = table.filter(policy=label)
        wins = own.filter(group=1)["task"].to_list()
        worst = own.drop_nulls("score").sort("score")
        policy = policies[label]
        # Of a router with a schedule, what there is to say is the router's.
        kind = type(getattr(policy, "router", policy))
        said = inspect.getdoc(kind) or ""
        cards.append({
            "label": label, "says": _tasks.comment_of("policy", label) or said.split("\n\n")[0],
            "docstring": said, "source": f"{kind.__module__}.{kind.__qualname__}",
            "constants": _constants(plain.policy[label], config.policy[label]),
            "sees": _sees(policy), "wins": ", ".join(wins),
            "loses": "" if not worst.height else
            f"{worst['task'][0]} (score {worst['score'][0]:.2f})",
        })  # fmt: skip
    return cards


def _constants(plain: Mapping[str, Any], prompts: Mapping[str, Any]) -> str:
    """Say a policy's constants on synthetic data, and which of them are others on prompts."""
    # What a policy or a router is, the card says beside them.
    own, there = (
        {key: value for key, value in some.items() if key not in ("_target_", "router")}
        for some in (plain, prompts)
    )
    others, said = {k: v for k, v in there.items() if v != own.get(k)}, _listed(own)
    return f"{said}; on prompts {_listed(others)}" if others else said


def _listed(constants: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={'null' if v is None else v}" for key, v in constants.items())


def _sees(policy: Any) -> str:
    """Say what a policy looks at."""
    if isinstance(policy, Learnt):
        return "prompts, by what it learnt of the seed's offline split"
    seen = ["the queue", "no contexts" if is_blind(policy) else "contexts"]
    return ", ".join([*seen, *(["what each query was shown"] if is_retry_aware(policy) else [])])
