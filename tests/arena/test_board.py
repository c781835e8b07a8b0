"""The arena's board: what a run counts for, and which rows can stand beside a run of today."""

import numpy as np
import polars as pl
import pytest
import xarray as xr

from cqbjax.arena import board
from cqbjax.arena.board import SAME_DRAWS, SAME_KEY, Board
from cqbjax.core.labels import OPTIMAL
from cqbjax.results.index import CacheKey

SEEDS = (4, 7)


def point():
    """Two seeds and three rounds of the optimal policy and another, whose users give up."""
    departures = [[[[1, 2, 3], [1, 2, 2]]], [[[0, 1, 2], [1, 1, 2]]]]
    queue = [[[[1, 1, 0], [0, 0, 1]]], [[[1, 0, 0], [0, 1, 0]]]]
    dims = ("policy", "arrival_rate", "seed", "round")
    return xr.Dataset(
        {
            "departures": (dims, departures), "queue_length": (dims, queue),
            "attempts": (dims, np.arange(12.0).reshape(2, 1, 2, 3)),
            "time_mean": (dims[:3], [[[2.0, 3]], [[4.0, 5]]]),
        },
        {"policy": [OPTIMAL, "x"], "arrival_rate": [0.7], "seed": list(SEEDS), "round": [2, 4, 6]},
    )  # fmt: skip


def test_gap_of_a_run_is_the_mean_departure_difference_to_the_oracle():
    rows = board.tabulate_point(point(), "a")
    assert rows.columns == list(board.SCHEMA) and {*rows["task"]} == {"a"}
    assert rows["policy"].to_list() == [OPTIMAL] * 2 + ["x"] * 2
    assert rows["seed"].to_list() == [*SEEDS] * 2
    np.testing.assert_allclose(rows["gap"], [0, 0, 1, 1 / 3])
    np.testing.assert_allclose(rows["queue"], [2 / 3, 1 / 3, 1 / 3, 1 / 3])
    # At the end of the run, whether it is read there or every round.
    assert rows["served"].to_list() == [3, 2, 2, 2]
    assert rows["attempts"].to_list() == [2, 5, 8, 11] and rows["time"].to_list() == [2, 3, 4, 5]
    # Queries in the queue after rounds 2 and 4, two rounds each, over departures and last queue.
    np.testing.assert_allclose(rows["time_per_arrival"], [4 / 3, 0, 1, 1], rtol=1e-6)
    assert rows["dollars"].null_count() == rows["gave_up"].null_count() == 4


NOTES = {"a": {"content": "c", "policies": {"x": "1", "y": "2", "z": "3"}}}


def test_stored_results_are_found_by_cache_key():
    stored = Board(pl.DataFrame(schema=board.SCHEMA), NOTES)
    now = {"x": "1", "y": "0", "new": "1"}
    assert board.find_known(stored, "a", CacheKey("c", now)) == {"x"}
    for task, content in (("a", "d"), ("b", "c")):
        assert board.find_known(stored, task, CacheKey(content, now)) == set()


def rows(policies, seeds, queue=1.0):
    """Return rows of a task, the optimal policy's queue as it is given."""
    return pl.DataFrame(
        [
            {"task": "a", "policy": label, "seed": seed, "gap": 0.0, "served": 3,
             "queue": queue if label == OPTIMAL else 9.0}
            for label in policies for seed in seeds
        ],
        schema=board.SCHEMA,
    )  # fmt: skip


@pytest.mark.parametrize("queue", [1.0, 2.0])
def test_board_rows_are_comparable_by_cache_key_or_identical_draws(queue):
    """Those of another key only if the oracle has the same numbers at every seed."""
    stored = Board(rows([OPTIMAL, "x", "y", "z"], (4, 7, 9)), NOTES)
    run = rows([OPTIMAL, "z"], SEEDS).with_columns(
        queue=pl.when((pl.col("policy") == OPTIMAL) & (pl.col("seed") == 7)).then(queue)
        .otherwise("queue")
    )  # fmt: skip
    beside = board.select_comparable(stored, run, {"x"})
    by = {(label, seed): by for label, seed, by in beside.select("policy", "seed", "by").rows()}
    same = {("x", seed): SAME_KEY for seed in SEEDS}
    others = {("y", seed): SAME_DRAWS for seed in SEEDS}
    assert by == (same | others if queue == 1.0 else same)
