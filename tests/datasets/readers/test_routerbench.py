"""RouterBench's files: CSVs against the Parquet row for row, pickles that may run nothing."""

import pathlib
import pickle

import dataset_files as schemas
import numpy as np
import polars as pl
import pytest

from cqbjax import datasets as ds


@pytest.mark.slow
def test_routerbench_csvs_equal_the_parquet_row_for_row(shared_data):
    folder = shared_data / "routerbench"
    table = ds.read_routerbench(folder)
    reread = ds.read_compact(folder / "routerbench.parquet")
    assert table.performance.shape == (3164, 11)
    for field in ("prompt_ids", "prompts", "origins", "servers"):
        assert getattr(table, field) == getattr(reread, field)
    np.testing.assert_array_equal(table.cost, reread.cost)
    original = ~np.isnan(reread.performance)
    assert (~original).sum() == 14
    np.testing.assert_array_equal(table.performance[original], reread.performance[original])
    ds.check_table(table)  # the 14 that the parquet lacks are found in the rows of the same id
    assert table.notes == ("merged 28 rows into 14 prompts of the same id",)


def test_routerbench_fills_missing_scores_only_from_identical_responses(tmp_path):
    frame = schemas.routerbench_frame(3)
    llm, rest = (
        schemas.ROUTERBENCH_LLMS[4],
        [m for m in schemas.ROUTERBENCH_LLMS if m != schemas.ROUTERBENCH_LLMS[4]],
    )
    lacks = frame[1].with_columns(pl.lit(None, pl.Float64).alias(llm))
    lends = frame[1].with_columns(
        *(pl.lit(None, pl.Float64).alias(m) for m in rest), pl.lit("['long']").alias("prompt")
    )
    other = lends.with_columns(pl.lit("['another answer']").alias(f"{llm}|model_response"))
    for name, lender, missing in (("same", lends, 0), ("other", other, 1)):
        file = tmp_path / f"{name}.csv"
        pl.concat([frame[0], lends.clear(), lacks, lender, frame[2]]).write_csv(file)
        table = ds.read_routerbench(file)
        assert np.isnan(table.performance).sum() == missing
        assert table.prompts == tuple(schemas.prompts(3))
        np.testing.assert_allclose(table.cost[1, 4], frame[f"{llm}|total_cost"][1])
    twice = tmp_path / "twice.csv"
    pl.concat([frame, frame[1]]).write_csv(twice)
    words = (
        "twice.csv: row 4, column 'sample_id': 'synthetic.dev.1' also stands in row 2 of .*twice"
    )
    with pytest.raises(ds.TableError, match=words):
        ds.read_routerbench(twice)


def test_routerbench_rows_without_scores_are_dropped_and_counted(tmp_path):
    frame = schemas.routerbench_frame(4)
    empty = frame[2].with_columns(
        pl.lit(None, pl.Float64).alias(m) for m in schemas.ROUTERBENCH_LLMS
    )
    pl.concat([frame[:2], empty, frame[3]]).write_csv(tmp_path / "a.csv")
    table = ds.read_routerbench(tmp_path)
    assert table.num_prompts == 3
    assert table.notes == ("dropped 1 rows without any score",)
    # Row 4 of the file is row 3 of the table: the prompt is named instead.
    spoilt = frame[3].with_columns(pl.lit(None, pl.Float64).alias("claude-v1"))
    pl.concat([frame[:2], empty, spoilt]).write_csv(tmp_path / "a.csv")
    with pytest.raises(ds.TableError, match="a.csv: prompt id .*3', score of 'claude-v1' is miss"):
        ds.drop_missing(ds.read_routerbench(tmp_path), file="a.csv")


def test_routerbench_faults_are_named(tmp_path):
    frame = schemas.routerbench_frame(4)
    llm = schemas.ROUTERBENCH_LLMS[0]
    answers = [column for column in frame.columns if column.endswith("|model_response")]
    costs = [column for column in frame.columns if column.endswith("|total_cost")]
    faults = {
        f"column '{llm}\\|total_cost' is missing": frame.drop(f"{llm}|total_cost"),
        f"column '{llm}\\|total_cost' is missing, column '{llm}' holds scores": frame.drop(
            f"{llm}|total_cost", *answers
        ),
        f"column '{llm}' \\(the scores\\) is missing": frame.drop(llm),
        "no LLM there, each needs a column of scores": frame.drop(
            *answers, *costs, *schemas.ROUTERBENCH_LLMS
        ),
        "column 'eval_name' is missing": frame.drop("eval_name"),
        "row 1, column 'claude-v1' must be a number, got 'good'": frame.with_columns(
            pl.lit("good").alias("claude-v1")
        ),
        "row 1 .*, column 'claude-v1' must be in \\[0, 1\\], got 7.0": frame.with_columns(
            pl.lit(7.0).alias("claude-v1")
        ),
        "row 1 .*, column 'claude-v1\\|total_cost' must not be negative": frame.with_columns(
            pl.lit(-1.0).alias("claude-v1|total_cost")
        ),
        "row 1 .*, column 'claude-v1\\|total_cost' is missing": frame.with_columns(
            pl.lit(None, pl.Float64).alias("claude-v1|total_cost")
        ),
    }
    for words, spoilt in faults.items():
        spoilt.write_csv(tmp_path / "x.csv")
        with pytest.raises(ds.TableError, match=words):
            ds.read_routerbench(tmp_path / "x.csv")
    with pytest.raises(ds.TableError, match="no such file"):
        ds.read_routerbench(tmp_path / "absent")
    frame.write_csv(tmp_path / "x.csv")
    whole = (tmp_path / "x.csv").read_bytes()
    (tmp_path / "x.csv").write_bytes(whole[: int(len(whole) * 0.6)])
    with pytest.raises(ds.TableError, match="x.csv"):
        ds.read_routerbench(tmp_path / "x.csv")


def test_routerbench_errors_name_file_row_and_column_among_several_files(tmp_path):
    """The CSVs are joined and sorted by their own row number, which the error must not show."""
    frame = schemas.routerbench_frame(20).with_row_index("")
    first, second = tmp_path / "a_train.csv", tmp_path / "b_train.csv"
    frame[::2].write_csv(first)
    at = pl.int_range(pl.len()) == 5
    cost = "claude-v1|total_cost"
    frame[1::2].with_columns(pl.when(at).then(-1.0).otherwise(pl.col(cost)).alias(cost)).write_csv(
        second
    )
    words = r"b_train.csv: row 6 \(prompt id 'synthetic.dev.11'\), column 'claude-v1\|total_cost'"
    with pytest.raises(ds.TableError, match=words):
        ds.read_routerbench(tmp_path)
    frame[1::2].write_csv(second)
    assert ds.read_routerbench(tmp_path).prompt_ids == tuple(frame["sample_id"])
    pl.concat([frame[1::2], frame[4]]).write_csv(second)
    words = "b_train.csv: row 11, .*'synthetic.dev.4' also stands in row 3 of .*a_train.csv, and "
    with pytest.raises(ds.TableError, match=words):
        ds.read_routerbench(tmp_path)


def test_routerbench_reads_every_csv_with_costs(tmp_path):
    frame = schemas.routerbench_frame(6)
    frame[:3].write_csv(tmp_path / "a.csv")
    pl.DataFrame({"model": ["x"], "price": [1.0]}).write_csv(tmp_path / "models.csv")
    assert ds.read_routerbench(tmp_path).num_prompts == 3
    frame[3:].drop("sample_id").write_csv(tmp_path / "b.csv")
    with pytest.raises(ds.TableError, match="b.csv: column 'sample_id' is missing"):
        ds.read_routerbench(tmp_path)
    # A column of numbers beyond [0, 1] is no score, and text is none: neither needs a cost.
    extra = frame[3:].with_columns(pl.lit(7).alias("level"), pl.lit("x").alias("remark"))
    extra.write_csv(tmp_path / "b.csv")
    frame[:3].with_columns(pl.lit(7).alias("level")).write_csv(tmp_path / "a.csv")
    assert ds.read_routerbench(tmp_path).servers == schemas.ROUTERBENCH_LLMS


# -- pickles ----------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_a_real_pickled_frame_reads_like_the_csv(tmp_path, protocol):
    pd = pytest.importorskip("pandas")
    frame = schemas.routerbench_frame(6)
    frame.write_csv(tmp_path / "a.csv")
    old = pd.DataFrame({name: frame[name].to_list() for name in frame.columns})
    texts = [name for name in old.columns if frame[name].dtype == pl.String]
    old[texts] = old[texts].astype(object)  # the official frames are older than string dtypes
    old.columns = pd.Index(frame.columns, dtype=object)
    old.iloc[0, 3] = np.nan
    (tmp_path / "official.pkl").write_bytes(pickle.dumps(old, protocol=protocol))
    table = ds.read_routerbench(tmp_path / "official.pkl")
    reread = ds.read_routerbench(tmp_path / "a.csv")
    assert (table.prompts, table.servers) == (reread.prompts, reread.servers)
    np.testing.assert_array_equal(table.cost, reread.cost)
    assert np.isnan(table.performance[0, 0])
    np.testing.assert_array_equal(table.performance.ravel()[1:], reread.performance.ravel()[1:])


class HostilePickle:
    """Makes a file when unpickled by the ordinary means."""

    def __init__(self, target: pathlib.Path, call) -> None:
        self.target, self.call = target, call

    def __reduce__(self):
        return self.call, (str(self.target),)


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_a_hostile_pickle_is_refused_by_name_and_never_runs(tmp_path, protocol):
    import os

    target = tmp_path / "was-run"
    payload = pickle.dumps({"frame": HostilePickle(target, os.mkdir)}, protocol=protocol)
    pickle.loads(payload)
    assert target.is_dir(), "the payload must be able to run code, or the test proves nothing"
    target.rmdir()
    (tmp_path / "evil.pkl").write_bytes(payload)
    with pytest.raises(ds.TableError, match=f"refused: it asks for {os.mkdir.__module__}.mkdir"):
        ds.read_routerbench(tmp_path / "evil.pkl")
    assert not target.exists()


def test_pickles_with_other_exploits_are_rejected(tmp_path):
    dotted = b"\x80\x04\x8c\x05numpy\x8c\x0endarray.tofile\x93."
    cases = {
        "builtins.eval": pickle.dumps(HostilePickle(tmp_path, eval)),
        "numpy.ndarray.tofile": dotted,
        "not a whole pickled frame|truncated": pickle.dumps(np.zeros(100))[:80],
        "holds a dict, not a frame": pickle.dumps({"a": 1}),
        "outside object": b"\x80\x04\x8c\x01xQ.",
    }
    for words, payload in cases.items():
        (tmp_path / "x.pkl").write_bytes(payload)
        with pytest.raises(ds.TableError, match=words):
            ds.read_routerbench(tmp_path / "x.pkl")
