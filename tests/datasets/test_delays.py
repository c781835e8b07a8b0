"""Tables of delays and of latencies, in rounds."""

import numpy as np
import polars as pl
import pytest

from cqbjax.datasets.delays import orbit, read_delays, read_latencies, rounds
from cqbjax.datasets.table import TableError
from cqbjax.worlds import Orbit, Rounds


def test_delays_of_a_column_are_rounded_up(tmp_path):
    path = tmp_path / "gaps.csv"
    path.write_text("chain,gap\n1,\n1,30\n1,61\n2,0\n")
    users = orbit(delays=path, column="gap")
    np.testing.assert_array_equal(users.delays, [1, 2, 1])
    np.testing.assert_array_equal(orbit(delays=path, column="gap", round_seconds=10).delays,
                                  [3, 7, 1])  # fmt: skip
    assert orbit(return_rate=0.3) == Orbit(return_rate=0.3)


def test_delays_of_a_trace_are_those_of_prompts_that_come_again(tmp_path):
    path = tmp_path / "trace.parquet"
    rows = {
        "timestamp": [0, 1000, 5000, 9000, 9500, 9900],
        "hash_ids": [[1, 2], [3, 4], [1, 2], [1, 2], [7], [7]],
        "input_length": [9, 9, 9, 9, 3, 3],
    }
    pl.DataFrame(rows).write_parquet(path)
    np.testing.assert_array_equal(read_delays(path), [5, 4])


REFUSED = {
    "column=wait must name a column of seconds, one of gap": ("wait", [3.0]),
    "row 2 of 'gap' must be seconds, not negative": ("gap", [3.0, -1.0]),
    "'gap' holds no delay": ("gap", [None]),
}


@pytest.mark.parametrize("message", REFUSED)
def test_delays_that_are_none_are_refused(message, tmp_path):
    (column, values), path = REFUSED[message], tmp_path / "gaps.parquet"
    pl.DataFrame({"gap": values}, schema={"gap": pl.Float64}).write_parquet(path)
    with pytest.raises(TableError, match=message):
        read_delays(path, column)


def test_latencies_are_of_each_prompt_and_llm_in_their_order(tmp_path):
    path = tmp_path / "times.csv"
    path.write_text("prompt_id,small,large\na,0.5,4\nb,2.0,9.1\n")
    service = rounds(latencies=path, round_seconds=2)
    np.testing.assert_array_equal(service.rounds, [[1, 2], [1, 5]])
    assert rounds(rounds=3, law="geometric") == Rounds(rounds=3, law="geometric")


WRONG = {
    "row 2 of 'large' must be seconds, not negative": "small,large\n1,2\n3,-4\n",
    "row 1 of 'small' must be seconds, not negative": "small,large\n,2\n3,4\n",
    "column 'small' must be seconds, and is String": "small,large\nquick,2\n",
    "must have a row a prompt and a column an LLM": "prompt_id\n",
}


@pytest.mark.parametrize("message", WRONG)
def test_latencies_that_are_none_are_refused(message, tmp_path):
    path = tmp_path / "times.csv"
    path.write_text(WRONG[message])
    with pytest.raises(TableError, match=message):
        read_latencies(path)


def test_what_is_read_with_a_table_alone_is_refused_without_one(tmp_path):
    with pytest.raises(ValueError, match="round_seconds=5 is read with delays alone: leave it out"):
        orbit(round_seconds=5)
    with pytest.raises(ValueError, match="column=gap is read with delays alone: leave it out"):
        orbit(column="gap")
    with pytest.raises(ValueError, match="round_seconds=5 is read with latencies alone"):
        rounds(round_seconds=5)
    with pytest.raises(ValueError, match="latencies needs round_seconds"):
        rounds(latencies=tmp_path / "times.csv")
