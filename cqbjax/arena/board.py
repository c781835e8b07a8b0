"""The arena's board: the results of each policy in each task, seed by seed.

The board comes with the package as two files: `board.parquet`, a row for each task, policy and
seed, and `board.json`, the cache keys of these results. A policy that enters the arena is compared
with them; the other policies do not run again.
"""

import functools
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import xarray as xr

from cqbjax.arena import scores
from cqbjax.core.files import write_atomic
from cqbjax.core.labels import OPTIMAL
from cqbjax.results.index import CacheKey
from cqbjax.results.summaries import add_time_per_arrival

SHIPPED = Path(__file__).resolve().parent / "board"
NUMBERS, NOTES = "board.parquet", "board.json"
# Column -> the recorded array whose last value it holds.
FINAL = {
    "time": "time_mean", "time_per_arrival": "time_per_arrival", "attempts": "attempts",
    "gave_up": "gave_up", "dollars": "dollars",
}  # fmt: skip
SCHEMA = {
    "task": pl.String, "policy": pl.String, "seed": pl.Int64, "gap": pl.Float64,
    "queue": pl.Float64, "served": pl.Int64, **dict.fromkeys(FINAL, pl.Float64),
}  # fmt: skip
# Where a row is from: run here, or from the board, by the same cache key or the same random draws.
RUN, BOARD, SAME_KEY, SAME_DRAWS = "run", "board", "key", "draws"


class Board(NamedTuple):
    """Results of policies in tasks.

    Attributes:
        rows: with the columns of `SCHEMA`.
        notes: task -> `version`, `content` (cache key of the task), `policies` (label -> cache
            key) and the versions that computed it.
    """

    rows: pl.DataFrame
    notes: dict[str, dict[str, Any]]


def tabulate_point(point: xr.Dataset, task: str) -> pl.DataFrame:
    """Return the rows of a stored point.

    The gap of a run is the number of queries satisfied so far by the oracle less those satisfied
    by the policy, averaged over the recorded rounds. It equals Q - Q* if users neither abandon nor
    go away. Otherwise users who abandoned or are away count as not served, so that a policy does
    not gain by losing its users.

    Args:
        point: a point of a sweep at one arrival rate, the oracle among its policies.
        task: its name.
    """
    one = add_time_per_arrival(point).isel(arrival_rate=0)
    done = one["departures"]
    arrays = {
        "gap": (done.sel(policy=OPTIMAL) - done).mean("round"),
        "queue": one["queue_length"].mean("round"), "served": done.isel(round=-1),
    }  # fmt: skip
    for column, name in FINAL.items():
        array = one.get(name, xr.full_like(done, np.nan, dtype=float))
        arrays[column] = array.isel(round=-1) if "round" in array.dims else array
    runs = xr.Dataset(arrays).astype(float).stack(run=("policy", "seed"))
    rows = {name: [task] * runs.sizes["run"] if name == "task" else runs[name].values.tolist()
            for name in SCHEMA}  # fmt: skip
    return pl.DataFrame(rows).with_columns(pl.selectors.float().fill_nan(None)).cast(SCHEMA)  # type: ignore[arg-type]


def write_board(board: Board, folder: Path) -> list[Path]:
    """Write a board's two files atomically; return them."""
    rows, written = board.rows.sort("task", "policy", "seed"), [folder / NUMBERS, folder / NOTES]
    write_atomic(written[0], functools.partial(rows.write_parquet, compression="zstd"))
    write_atomic(written[1], (json.dumps(board.notes, indent=1, sort_keys=True) + "\n").encode())
    return written


def read_board(folder: Path | None = None) -> Board:
    """Read a board, by default the shipped one; an empty one if there is none.

    A column that an older version did not write is null.
    """
    folder, empty = folder or SHIPPED, pl.DataFrame(schema=SCHEMA)
    if not (folder / NOTES).is_file():
        return Board(empty, {})
    rows = pl.concat([empty, pl.read_parquet(folder / NUMBERS)], how="diagonal")
    return Board(rows, json.loads((folder / NOTES).read_text()))


def find_known(board: Board, task: str, key: CacheKey) -> set[str]:
    """Return the labels of a task whose cache key on the board equals today's.

    Args:
        board: from `read_board`.
        task: its name.
        key: today's cache keys of the task, at all its seeds.
    """
    notes = board.notes.get(task, {"content": None})
    if notes["content"] != key.point:
        return set()
    return {x for x, own in notes["policies"].items() if key.policies.get(x) == own}


def add_known(made: Board, board: Board, by: str = RUN) -> pl.DataFrame:
    """Return new results with those of the board that are comparable.

    A policy of the board is comparable if its task has the same version, rounds and first seed
    and its cache key is today's, or if the oracle's numbers are the same at every seed, so that
    the policy met the same random draws.

    Args:
        made: new results; its notes list the `known` labels, from `find_known`.
        board: from `read_board`.
        by: where `made` is from.

    Returns:
        The rows of both, with `by`: where each row is from.
    """
    parts = []
    for (name,), run in made.rows.partition_by("task", as_dict=True).items():
        parts.append(run.with_columns(by=pl.lit(by)))
        task, fixed = str(name), ("version", "horizon", "first_seed")
        here, there = made.notes[task], board.notes.get(task)
        if there is not None and all(there[key] == here[key] for key in fixed):
            parts.append(select_comparable(board, run, {*here["known"]}))
    return pl.concat(parts)


def select_comparable(board: Board, run: pl.DataFrame, known: set[str]) -> pl.DataFrame:
    """Return the board's rows that are comparable with the runs of a task; see `add_known`.

    Args:
        board: from `read_board`.
        run: rows of one task.
        known: from `find_known`.

    Returns:
        Rows of policies that `run` lacks, at its seeds, with `by`: `SAME_KEY` or `SAME_DRAWS`.
    """
    task, seeds = run["task"][0], run["seed"].unique()
    there = board.rows.filter(pl.col("task") == task, pl.col("seed").is_in(seeds.to_list()))
    on, oracle = ["seed", "queue", "served"], pl.col("policy") == OPTIMAL
    same_draws = run.filter(oracle).join(there.filter(oracle), on=on).height == len(seeds)
    labels = {*there["policy"]} - {*run["policy"]}
    rows = there.filter(pl.col("policy").is_in(sorted(labels if same_draws else labels & known)))
    by = pl.when(pl.col("policy").is_in(sorted(known))).then(pl.lit(SAME_KEY))
    return rows.with_columns(by=by.otherwise(pl.lit(SAME_DRAWS)))


def tabulate_policies(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the table of the arena: a row for each task and policy, best first.

    Args:
        rows: rows with the columns `SCHEMA` and `by`; within a task every policy has the same
            seeds.

    Returns:
        `task`, `policy`, the columns of `scores.group_policies` (null for the oracle), `seeds`, and
        with 95% intervals `gap` (queries), `score` (0 random routing, 1 the oracle), `behind`
        (queries more than the best of the task, paired by seed), `time` (rounds in the system of
        satisfied queries), `time_per_arrival` (of all arrivals), `attempts`, `gave_up` and
        `dollars`; then `by`.
    """
    on = ("task", "policy")
    by = rows.group_by(on).agg(pl.col("by").first())
    rows = rows.drop("by")
    table = scores.average(scores.add_scores(rows), ["gap", "score", *FINAL])
    differences = scores.compare_with_best(rows).drop("seeds")
    table = table.join(differences, on=on).join(scores.group_policies(rows), on=on, how="left")
    names = list_columns(("gap", "score", "behind", *FINAL))
    table = table.select(*on, "group", "standing", "same_as", "seeds", *names)
    return table.sort("task", "gap", "policy").join(by, on=on, maintain_order="left")


def list_columns(names: Iterable[str]) -> list[str]:
    """Return the columns of means and their intervals."""
    return [f"{name}{end}" for name in names for end in ("", "_low", "_high")]


def list_tracks(rows: pl.DataFrame, on_prompts: Sequence[str]) -> dict[str, list[str]]:
    """Return the sets of tasks over which scores are aggregated, by name.

    Args:
        rows: from `scores.add_scores`.
        on_prompts: the tasks on real prompts, in which routers that learn offline run too.
    """
    tasks = rows.filter(pl.col("score").is_not_null())["task"].unique().sort().to_list()
    real = [task for task in tasks if task in on_prompts]
    return {"all tasks": tasks} | ({"real prompts": real} if 0 < len(real) < len(tasks) else {})
