"""Tables of delays and of latencies, in rounds."""

import dataclasses

import jax
import numpy as np
import polars as pl
import pytest

from cqbjax.core.inputs import TableNames
from cqbjax.core.scenario import with_dynamics
from cqbjax.datasets.source import dataset_source
from cqbjax.datasets.table import TableError
from cqbjax.datasets.times import (
    make_orbit,
    make_service_times,
    read_delays,
    read_latencies,
    read_times,
)
from cqbjax.dynamics import Orbit, ServiceTimes
from cqbjax.sources import ArrivalWrapper, BurstyArrivals, Synthetic


def test_return_delays_of_a_column_are_rounded_up(tmp_path):
    path = tmp_path / "gaps.csv"
    path.write_text("chain,gap\n1,\n1,30\n1,61\n2,0\n")
    users = make_orbit(delays=path, column="gap")
    np.testing.assert_array_equal(users.delays, [1, 2, 1])
    np.testing.assert_array_equal(make_orbit(delays=path, column="gap", round_seconds=10).delays,
                                  [3, 7, 1])  # fmt: skip
    assert make_orbit(return_rate=0.3) == Orbit(return_rate=0.3)


def test_return_delays_of_a_trace_are_gaps_between_equal_prompts(tmp_path):
    path = tmp_path / "trace.parquet"
    rows = {
        "timestamp": [0, 1000, 5000, 7000, 9000, 9500, 9900],
        "hash_ids": [[1, 2], [3, 4], [1, 2], [1, 2], [1, 2], [7], [7]],
        "input_length": [9, 9, 9, 8, 9, 3, 3],  # another length is another prompt
    }
    pl.DataFrame(rows).write_parquet(path)
    np.testing.assert_array_equal(read_delays(path), [5, 4])


REFUSED = {
    "column=wait must name a column of seconds, one of gap": ("wait", [3.0]),
    "row 2 of 'gap' must be seconds, not negative": ("gap", [3.0, -1.0]),
    "row 3 of 'gap' must be seconds, not negative": ("gap", [3.0, None, float("nan")]),
    "'gap' holds no delay": ("gap", [None]),
}


@pytest.mark.parametrize("message", REFUSED)
def test_invalid_return_delays_are_rejected(message, tmp_path):
    (column, values), path = REFUSED[message], tmp_path / "gaps.parquet"
    pl.DataFrame({"gap": values}, schema={"gap": pl.Float64}).write_parquet(path)
    with pytest.raises(TableError, match=message):
        read_delays(path, column)


def save(frame, path):
    (frame.write_csv if path.suffix == ".csv" else frame.write_parquet)(path)
    return path


@pytest.mark.parametrize("name", ["times.csv", "times.parquet"])
def test_latencies_are_joined_by_prompt_and_llm_in_any_order(name, tmp_path):
    frame = pl.DataFrame(
        {"prompt_id": [1, 2, 30], "small": [0.5, 2, 8], 'la "r" ge': [4, 9.1, 2]}, strict=False
    )
    table = TableNames(["1", "2", "30"], ["small", 'la "r" ge'], "dataset mine")
    for order in (frame, frame[::-1], frame.select(frame.columns[::-1])[[1, 0, 2]]):
        service = make_service_times(latencies=save(order, tmp_path / name), round_seconds=2)
        assert service.join_names(table).names is None
        np.testing.assert_array_equal(service.join_names(table).rounds, [[1, 2], [1, 5], [4, 1]])
    own = TableNames(["30", "1"], ["small", 'la "r" ge'], "dataset mine")
    with pytest.raises(ValueError, match="times.*: has prompt_id '2', unknown there: they must be"):
        service.join_names(own)
    own = TableNames(["1", "2", "30"], ["small", "large"], "dataset mine")
    with pytest.raises(ValueError, match="lacks LLM 'large' and has LLM 'la \"r\" ge', unknown"):
        service.join_names(own)
    with pytest.raises(ValueError, match="the source has no table of named ones"):
        with_dynamics(Synthetic(num_servers=2, dim=2), [], [service])
    assert make_service_times(rounds=3, law="geometric") == ServiceTimes(rounds=3, law="geometric")


def test_latencies_of_geometric_service_times_are_means_in_parts_of_rounds(tmp_path):
    path = save(pl.DataFrame({"prompt_id": ["1", "2"], "small": [0.5, 3.0]}), tmp_path / "a.csv")
    service = make_service_times(law="geometric", latencies=path, round_seconds=2)
    np.testing.assert_array_equal(service.rounds, [[1.0], [1.5]])
    service = make_service_times(latencies=path, round_seconds=2)
    np.testing.assert_array_equal(service.rounds, [[1.0], [2.0]])


WRONG = {
    "row 2 of 'large' must be seconds, not negative": "prompt_id,small,large\na,1,2\nb,3,-4\n",
    "row 1 of 'small' must be seconds, not negative": "prompt_id,small,large\na,,2\nb,3,4\n",
    "row 2 of 'small' must be seconds": "prompt_id,small\na,2\nb,nan\n",
    "row 2, column 'small' must be a number, got 'quick'": "prompt_id,small\na,2\nb,quick\n",
    "must have a row a prompt and a column an LLM": "prompt_id\n",
    "column 'prompt_id' is missing": "small,large\n1,2\n",
    "rows 1 and 3, column 'prompt_id': '01' occurs twice": "prompt_id,m\n01,2\n1,2\n01,3\n",
    "column 'small' stands there twice": "prompt_id,small,small\na,2,3\n",
}


def test_wrapped_dataset_sources_keep_the_llm_names(tmp_path):
    data = dataset_source("paretobandit", tmp_path, pool_size=5)
    table, draw = data.table, np.random.default_rng(0)
    seconds = draw.integers(1, 9, (table.num_prompts, table.num_servers))
    frame = pl.DataFrame({"prompt_id": table.prompt_ids}).with_columns(
        pl.Series(name, seconds[:, j]) for j, name in enumerate(table.servers)
    )
    order = draw.permutation(table.num_prompts)
    service = make_service_times(
        latencies=save(frame[order], tmp_path / "times.csv"), round_seconds=1
    )
    for source in (data.queries, ArrivalWrapper(source=data.queries, process=BurstyArrivals())):
        joined = with_dynamics(source, [], [service]).service[0]
        np.testing.assert_array_equal(joined.rounds, seconds)
    # Names fix no program.
    other = dataclasses.replace(data.queries, names=TableNames(["a"], ["b"], "c"))
    assert jax.tree.structure(other) == jax.tree.structure(data.queries)


@pytest.mark.parametrize("message", WRONG)
def test_invalid_latencies_are_rejected(message, tmp_path):
    path = tmp_path / "times.csv"
    path.write_text(WRONG[message])
    with pytest.raises(TableError, match=message):
        read_latencies(path)


def test_column_types_are_inferred_from_all_rows(tmp_path):
    whole = range(1, 2001)
    (tmp_path / "gaps.csv").write_text("who,gap\n" + "".join(f"{i},\n" for i in whole) + "x,1.5\n")
    assert read_delays(tmp_path / "gaps.csv", "gap").tolist() == [1.5]
    rows = "".join(f"{i},{i}\n" for i in whole)
    (tmp_path / "times.csv").write_text(f"prompt_id,a\n{rows}z9,0.5\n")
    assert read_latencies(tmp_path / "times.csv")[0][-1, 0] == 0.5
    (tmp_path / "trace.csv").write_text("t\n" + "".join(f"{i}\n" for i in whole) + "2000.5\n")
    assert read_times(tmp_path / "trace.csv", "t")[-1] == 2000.5


def test_table_settings_are_rejected_without_a_table(tmp_path):
    with pytest.raises(ValueError, match="round_seconds=5 is read with delays alone: leave it out"):
        make_orbit(round_seconds=5)
    with pytest.raises(ValueError, match="column=gap is read with delays alone: leave it out"):
        make_orbit(column="gap")
    with pytest.raises(ValueError, match="round_seconds=5 is read with latencies alone"):
        make_service_times(round_seconds=5)
    with pytest.raises(ValueError, match="latencies needs round_seconds"):
        make_service_times(latencies=tmp_path / "times.csv")
