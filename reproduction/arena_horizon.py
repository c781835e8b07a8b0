"""Whether the arena's ranking holds in changed tasks, such as longer runs (T = 5,000).

    python -m reproduction.arena_horizon FOLDER NAME

reads the studies of FOLDER, from `cqbjax run arena=TASK policy=[...] horizon=5000 first_seed=0
name=TASK results_dir=FOLDER` (for a jump: `drift.jump_at=ROUND first_seed=2000000`), and writes
`results/tables/NAME.csv`: gap and score of each policy, its group among the policies that ran, and
its score on the board.
"""

import sys
from pathlib import Path

import polars as pl

from cqbjax import results
from cqbjax.arena import scores
from cqbjax.arena.board import read_board, tabulate_point
from cqbjax.core.labels import OPTIMAL
from cqbjax.results.tables import write_csv

TABLES = Path(__file__).parents[1] / "results" / "tables"
ON = ("task", "policy")


def compare_horizons(runs: pl.DataFrame) -> pl.DataFrame:
    """Return a row for each task and policy, best first, without the oracle.

    Args:
        runs: rows of all tasks, from `tabulate_point`.
    """
    table = scores.average(scores.add_scores(runs), ["gap", "score"])
    board = scores.average(scores.add_scores(read_board().rows), ["score"])
    board = board.select(*ON, board="score", board_low="score_low", board_high="score_high")
    table = table.filter(pl.col("policy") != OPTIMAL).join(board, on=ON, how="left")
    groups = scores.group_policies(runs).select(*ON, "group", "standing")
    return table.join(groups, on=ON, how="left").sort("task", "gap")


if __name__ == "__main__":
    stored = sorted(path for path in (Path(sys.argv[1]) / "data").iterdir() if path.is_dir())
    parts = [tabulate_point(results.load(path), path.name) for path in stored]
    write_csv(TABLES / f"{sys.argv[2]}.csv", compare_horizons(pl.concat(parts)))
