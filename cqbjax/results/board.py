"""The arena's board: what each policy reached in each task, run by run, and what that follows from.

The board comes with the package as two files: `board.parquet`, a row a task, policy and seed, and
`board.json`, the keys of what computed them. A policy that enters the arena is set beside it
without running the others again.
"""

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import xarray as xr

from cqbjax.core.files import write_atomic
from cqbjax.core.labels import OPTIMAL
from cqbjax.results import scores

HERE = Path(__file__).resolve().parent / "board"
NUMBERS, NOTES = "board.parquet", "board.json"
# What is read of a run's end where it is recorded, by the name of its column.
BESIDE = {"time": "time_mean", "attempts": "attempts", "gave_up": "gave_up", "dollars": "dollars"}
SCHEMA = {
    "task": pl.String, "policy": pl.String, "seed": pl.Int64, "gap": pl.Float64,
    "queue": pl.Float64, "served": pl.Int64, **dict.fromkeys(BESIDE, pl.Float64),
}  # fmt: skip
# How a row of the board was found fit to stand beside a run of today.
SAME_KEY, SAME_DRAWS = "key", "draws"


class Board(NamedTuple):
    """What came with the package, or what a command has just run.

    Attributes:
        rows: `SCHEMA`.
        notes: task -> `version`, `content` (the key of the task), `policies` (label -> key),
            `seconds` (label -> processor time of its runs) and what computed it.
    """

    rows: pl.DataFrame
    notes: dict[str, dict[str, Any]]


def rows_of(point: xr.Dataset, task: str) -> pl.DataFrame:
    """Return the rows of a stored point.

    The gap of a run is how many queries fewer than by the yardstick are satisfied so far, averaged
    over the recorded rounds. Where nobody leaves and nobody is away, that is Q - Q*; elsewhere who
    gave up or is away counts as not served, so that it helps no policy to lose its users.

    Args:
        point: of a sweep at one arrival rate, the yardstick among its policies.
        task: its name.
    """
    one = point.isel(arrival_rate=0)
    fewer = one["departures"].sel(policy=OPTIMAL) - one["departures"]
    numbers = {
        "gap": fewer.mean("round"), "queue": one["queue_length"].mean("round"),
        "served": one["departures"].isel(round=-1),
    } | {column: _at_end(one, name) for column, name in BESIDE.items()}  # fmt: skip
    labels, seeds = (one[dim].values for dim in ("policy", "seed"))
    each = {
        name: values.transpose("policy", "seed").values.astype(float).ravel()
        for name, values in numbers.items()
    }
    frame = pl.DataFrame({
        "task": [task] * (len(labels) * len(seeds)), "policy": np.repeat(labels, len(seeds)),
        "seed": np.tile(seeds, len(labels)), **each,
    })  # fmt: skip
    return frame.with_columns(pl.selectors.float().fill_nan(None)).cast(SCHEMA)  # type: ignore[arg-type]


def _at_end(one: xr.Dataset, name: str) -> xr.DataArray:
    """Return what a recorder left at the end of a run, NaN where it was not asked."""
    if name not in one:
        return xr.full_like(one["departures"].isel(round=-1), np.nan, dtype=float)
    return one[name].isel(round=-1) if "round" in one[name].dims else one[name]


def write(board: Board, folder: Path) -> list[Path]:
    """Write a board's two files, each whole or not at all; return them."""
    rows, written = board.rows.sort("task", "policy", "seed"), [folder / NUMBERS, folder / NOTES]
    write_atomic(written[0], functools.partial(rows.write_parquet, compression="zstd"))
    write_atomic(written[1], (json.dumps(board.notes, indent=1, sort_keys=True) + "\n").encode())
    return written


def none() -> Board:
    """Return a board with nothing on it."""
    return Board(pl.DataFrame(schema=SCHEMA), {})


def read(folder: Path = HERE) -> Board:
    """Read a board; an empty one where there is none."""
    if not (folder / NOTES).is_file():
        return none()
    return Board(pl.read_parquet(folder / NUMBERS), json.loads((folder / NOTES).read_text()))


def verified(board: Board, task: str, content: str, policies: Mapping[str, str]) -> set[str]:
    """Return the labels of a task that the board's keys say are what would be computed now.

    Args:
        board: from `read`.
        task: its name.
        content: the key of the task as it is now, at all its seeds.
        policies: label -> the key of each policy as it is now.
    """
    notes = board.notes.get(task, {})
    if notes.get("content") != content:
        return set()
    return {label for label, key in notes["policies"].items() if policies.get(label) == key}


def beside(board: Board, run: pl.DataFrame, known: set[str]) -> pl.DataFrame:
    """Return the board's rows that can stand beside the runs of a task.

    Those whose key is the one of today, and, where the yardstick's own numbers are the same at
    every seed, those of other code too: policies met the same draws.

    Args:
        board: from `read`.
        run: rows of one task.
        known: from `verified`.

    Returns:
        Rows of the policies and seeds of the board that `run` has not, with `by`: `SAME_KEY` or
        `SAME_DRAWS`.
    """
    task, seeds = run["task"][0], run["seed"].unique()
    there = board.rows.filter(pl.col("task") == task, pl.col("seed").is_in(seeds.to_list()))
    on, yardstick = ["seed", "queue", "served"], pl.col("policy") == OPTIMAL
    alike = run.filter(yardstick).join(there.filter(yardstick), on=on).height == len(seeds)
    labels = {*there["policy"]} - {*run["policy"]}
    fit = known if not alike else labels
    by = pl.when(pl.col("policy").is_in(sorted(known))).then(pl.lit(SAME_KEY))
    kept = there.filter(pl.col("policy").is_in(sorted(labels & fit)))
    return kept.with_columns(by=by.otherwise(pl.lit(SAME_DRAWS)))


def table(rows: pl.DataFrame) -> pl.DataFrame:
    """Return what the arena shows: a row a task and policy, best first.

    Args:
        rows: `SCHEMA`, of every policy that is compared, at the same seeds within a task.

    Returns:
        `task`, `policy`, `group` (null for the yardstick), `seeds`, and with 95% intervals `gap`
        (queries), `score` (0 random routing, 1 the yardstick), `behind` (queries more than the best
        of the task, paired by seed), `time` (rounds in the system of who was satisfied),
        `attempts`, `gave_up` and `dollars`.
    """
    made = scores.means(scores.scored(rows), ["gap", "score", *BESIDE])
    apart = scores.behind(rows, scores.leaders(rows)).drop("seeds")
    both = made.join(apart, on=("task", "policy")).join(
        scores.groups(rows), on=("task", "policy"), how="left"
    )
    first = ["task", "policy", "group", "seeds", "gap", "gap_low", "gap_high"]
    names = [*scores_of("score"), *scores_of("behind"), *(n for b in BESIDE for n in scores_of(b))]
    return both.select(*first, *names).sort("task", "gap", "policy")


def scores_of(name: str) -> list[str]:
    """Return a mean's columns: itself and its interval."""
    return [name, f"{name}_low", f"{name}_high"]


def tracks(rows: pl.DataFrame, prompts: Sequence[str]) -> dict[str, list[str]]:
    """Return the sets of tasks over which scores are put together, by their names.

    Args:
        rows: from `scores.scored`.
        prompts: the tasks on real prompts, in which routers that learn offline run too.
    """
    there = rows.filter(pl.col("score").is_not_null())["task"].unique().sort().to_list()
    real = [task for task in there if task in prompts]
    return {"all tasks": there} | ({"real prompts": real} if 0 < len(real) < len(there) else {})
