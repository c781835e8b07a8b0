"""Datasets: real files against each other, official schemas, planted faults."""

import dataclasses
import pathlib
import pickle

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cqbjax import datasets as ds
from cqbjax.datasets import made_up as schemas
from cqbjax.datasets import prices


def small_table() -> ds.RoutingTable:
    rng = np.random.default_rng(0)
    return ds.RoutingTable(
        "small", ("a", "b", "c"), ("x", "y", "z"), ("s",) * 3, ("m", "n"),
        rng.uniform(size=(3, 2)), rng.uniform(size=(3, 2)),
    )  # fmt: skip


def with_cell(column: str, i: int, j: int, value: float) -> ds.RoutingTable:
    table = small_table()
    array = getattr(table, column).copy()
    array[i, j] = value
    return dataclasses.replace(table, **{column: array})


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("performance", np.nan, "column 'score|n' is missing"),
        ("performance", 1.5, r"column 'score|n' must be in \[0, 1\], got 1.5"),
        ("performance", -0.1, r"column 'score|n' must be in \[0, 1\]"),
        ("cost", -1.0, "column 'cost|n' must not be negative"),
        ("cost", np.nan, "column 'cost|n' is missing"),
        ("cost", np.inf, "column 'cost|n' is missing or not finite"),
    ],
)
def test_a_bad_cell_is_named_by_file_row_and_column(column, value, words):
    with pytest.raises(ds.TableError, match=words.replace("|", r"\|")) as caught:
        ds.check(with_cell(column, 2, 1, value), "file.csv")
    assert str(caught.value).startswith("file.csv: row 2 (prompt id 'c')")


def test_ids_servers_and_shapes_are_checked():
    table = small_table()
    ds.check(table)
    with pytest.raises(ds.TableError, match="prompt id 'a'.* 2 times"):
        ds.check(dataclasses.replace(table, prompt_ids=("a", "b", "a")))
    with pytest.raises(ds.TableError, match="at least 2 servers"):
        ds.check(ds.take(table, [0, 1], [0]))
    with pytest.raises(ds.TableError, match="float64 of shape"):
        ds.check(dataclasses.replace(table, cost=table.cost[:2]))


def test_nothing_is_dropped_unasked_and_all_is_counted():
    table = with_cell("performance", 1, 0, np.nan)
    with pytest.raises(ds.TableError, match="is missing"):
        ds.complete(table)
    kept, dropped = ds.complete(table, drop_incomplete_prompts=True)
    assert kept.prompt_ids == ("a", "c")
    assert dropped.kept_rows.tolist() == [0, 2]
    assert kept.notes == ("dropped 1 prompts with a missing score",)
    wide = dataclasses.replace(
        table, servers=("m", "n", "o"),
        performance=np.column_stack([table.performance, [0.0, 1.0, 0.5]]),
        cost=np.column_stack([table.cost, np.ones(3)]),
    )  # fmt: skip
    kept, dropped = ds.complete(wide, drop_servers_below=0.9, drop_incomplete_prompts=True)
    assert kept.servers == ("n", "o")
    assert dropped.servers == (("m", 1),)
    assert kept.num_prompts == 3


# -- RouterBench ------------------------------------------------------------------------------


def test_routerbench_csvs_equal_the_parquet_row_for_row(shared_data):
    folder = shared_data / "routerbench"
    table = ds.read_routerbench(folder)
    twin = ds.read_compact(folder / "routerbench.parquet")
    assert table.performance.shape == (3164, 11)
    for field in ("prompt_ids", "prompts", "origins", "servers"):
        assert getattr(table, field) == getattr(twin, field)
    np.testing.assert_array_equal(table.cost, twin.cost)
    given = ~np.isnan(twin.performance)
    assert (~given).sum() == 14
    np.testing.assert_array_equal(table.performance[given], twin.performance[given])
    ds.check(table)  # the 14 that the parquet lacks are found in the rows of the same id
    assert table.notes == ("merged 28 rows into 14 prompts of the same id",)


def test_routerbench_lends_a_score_only_for_the_same_response(tmp_path):
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
    with pytest.raises(ds.TableError, match="duplicate prompt id 'synthetic.dev.1'"):
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


def test_routerbench_faults_are_named(tmp_path):
    frame = schemas.routerbench_frame(4)
    llm = schemas.ROUTERBENCH_LLMS[0]
    faults = {
        f"column '{llm}\\|total_cost' is missing": frame.drop(f"{llm}|total_cost"),
        "column 'eval_name' is missing": frame.drop("eval_name"),
        "row 0, column 'claude-v1' must be a number, got 'good'": frame.with_columns(
            pl.lit("good").alias("claude-v1")
        ),
        "row 0 .*'score\\|claude-v1' must be in \\[0, 1\\], got 7.0": frame.with_columns(
            pl.lit(7.0).alias("claude-v1")
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
    twin = ds.read_routerbench(tmp_path / "a.csv")
    assert (table.prompts, table.servers) == (twin.prompts, twin.servers)
    np.testing.assert_array_equal(table.cost, twin.cost)
    assert np.isnan(table.performance[0, 0])
    np.testing.assert_array_equal(table.performance.ravel()[1:], twin.performance.ravel()[1:])


class Hostile:
    """Makes a file when unpickled by the ordinary means."""

    def __init__(self, target: pathlib.Path, call) -> None:
        self.target, self.call = target, call

    def __reduce__(self):
        return self.call, (str(self.target),)


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_a_hostile_pickle_is_refused_by_name_and_never_runs(tmp_path, protocol):
    import os

    target = tmp_path / "was-run"
    payload = pickle.dumps({"frame": Hostile(target, os.mkdir)}, protocol=protocol)
    pickle.loads(payload)
    assert target.is_dir(), "the payload must be able to run code, or the test proves nothing"
    target.rmdir()
    (tmp_path / "evil.pkl").write_bytes(payload)
    with pytest.raises(ds.TableError, match=f"refused: it asks for {os.mkdir.__module__}.mkdir"):
        ds.read_routerbench(tmp_path / "evil.pkl")
    assert not target.exists()


def test_other_ways_into_a_pickle_are_refused(tmp_path):
    dotted = b"\x80\x04\x8c\x05numpy\x8c\x0endarray.tofile\x93."
    cases = {
        "builtins.eval": pickle.dumps(Hostile(tmp_path, eval)),
        "numpy.ndarray.tofile": dotted,
        "not a whole pickled frame|truncated": pickle.dumps(np.zeros(100))[:80],
        "holds a dict, not a frame": pickle.dumps({"a": 1}),
        "outside object": b"\x80\x04\x8c\x01xQ.",
    }
    for words, payload in cases.items():
        (tmp_path / "x.pkl").write_bytes(payload)
        with pytest.raises(ds.TableError, match=words):
            ds.read_routerbench(tmp_path / "x.pkl")


# -- compact, EmbedLLM, SPROUT ----------------------------------------------------------------


def test_mmlu_pro_drops_are_counted_and_embeddings_follow(shared_data):
    table, embeddings = ds.load_dataset("mmlu_pro", shared_data)
    assert table.performance.shape == (12002, 28)
    assert "DeepSeek-Coder-V2" not in table.servers
    assert table.notes == (
        "dropped server DeepSeek-Coder-V2 (1,681 scores missing)",
        "dropped 30 prompts with a missing score",
    )
    frame = pl.read_parquet(shared_data / "mmlu_pro" / "mmlu_pro.parquet")
    given = np.load(shared_data / "mmlu_pro" / ds.catalogue.EMBEDDINGS_FILE)
    for row in (0, 6000, 12001):
        old = frame["prompt_id"].to_list().index(table.prompt_ids[row])
        np.testing.assert_array_equal(embeddings[row], given[old].astype(np.float32))
        for server in (table.servers[0], "jamba-1.5-large"):
            j = table.servers.index(server)
            assert table.performance[row, j] == frame[f"score|{server}"][old]


def test_load_routerbench_gives_the_given_embeddings(shared_data):
    table, embeddings = ds.load_dataset("routerbench", shared_data)
    given = np.load(shared_data / "routerbench" / ds.catalogue.EMBEDDINGS_FILE)
    np.testing.assert_array_equal(embeddings, given.astype(np.float32))
    assert embeddings.dtype == np.float32
    assert "standing in" in table.stand_in


def test_load_refuses_missing_data_and_wrong_embeddings(tmp_path):
    with pytest.raises(ValueError, match="dataset must be one of routerbench, mmlu_pro"):
        ds.load_dataset("nope", tmp_path)
    with pytest.raises(ValueError, match="run python scripts/prepare_data.py dataset=sprout"):
        ds.load_dataset("sprout", tmp_path)
    folder = tmp_path / "routerbench"
    folder.mkdir()
    file = folder / ds.catalogue.EMBEDDINGS_FILE
    np.save(file, np.zeros((5, 4)))
    with pytest.raises(ValueError, match="no RouterBench file"):
        ds.load_dataset("routerbench", tmp_path)
    schemas.routerbench_frame(6).write_csv(folder / "made_train.csv")
    with pytest.raises(ValueError, match=r"shape \(5, 4\), but the table has 6 prompts"):
        ds.load_dataset("routerbench", tmp_path)
    np.save(file, np.full((6, 4), [[0, 0, np.inf, 0]]))
    with pytest.raises(ValueError, match="row 0 holds a number that is not finite"):
        ds.load_dataset("routerbench", tmp_path)
    np.save(file, np.eye(6))
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(ValueError, match="cut short"):
        ds.load_dataset("routerbench", tmp_path)


def test_compact_faults_are_named(tmp_path):
    frame = pl.DataFrame(
        {"prompt_id": ["a", "b"], "prompt": ["x", "y"], "source": ["s", "s"],
         "score|m": [1.0, 0.0], "score|n": [0.5, 0.0], "cost|m": [0.1, 0.1], "cost|n": [0.0, 0.2]}
    )  # fmt: skip
    file = tmp_path / "own.csv"
    frame.write_csv(file)
    assert ds.read_compact(file).servers == ("m", "n")
    faults = {
        "column 'cost|n' is missing": frame.drop("cost|n"),
        "column 'score|n' is missing": frame.drop("score|n"),
        "column 'source' is missing": frame.drop("source"),
        "row 0, column 'score|m' must be a number": frame.with_columns(
            pl.lit("?").alias("score|m")
        ),
        "'cost|m' must not be negative": frame.with_columns(pl.lit(-1.0).alias("cost|m")),
        "'cost|m' is missing": frame.with_columns(pl.lit(None, pl.Float64).alias("cost|m")),
    }
    for words, spoilt in faults.items():
        spoilt.write_csv(file)
        with pytest.raises(ds.TableError, match=words.replace("|", r"\|")):
            ds.read_compact(file)
    (tmp_path / "x.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(ds.TableError, match="not readable"):
        ds.read_compact(tmp_path / "x.parquet")


@pytest.mark.parametrize("block_bytes", [20_000, 8 << 20])
def test_embedllm_in_blocks_at_its_112_llms(tmp_path, block_bytes):
    labels, texts = schemas.write_embedllm(tmp_path)
    table = ds.read_embedllm(tmp_path, block_bytes=block_bytes)
    assert table.num_servers == 112
    assert table.servers == schemas.EMBEDLLM_LLMS
    assert table.prompts == texts
    np.testing.assert_array_equal(table.performance, labels)
    assert (table.cost == table.cost[0]).all()
    # 8x7B is a mixture of 56 billion: 0.6 USD a million tokens, 1,000 tokens a query
    eight = next(j for j, name in enumerate(table.servers) if "8x7B" in name)
    assert table.cost[0, eight] == pytest.approx(0.6e-3)
    entry = ds.dataset("embedllm").read(tmp_path)
    assert "made-up content" in entry.stand_in


def test_embedllm_duplicates_collapse_by_max_and_are_counted(tmp_path):
    labels, _ = schemas.write_embedllm(tmp_path)
    frame = pl.read_csv(tmp_path / "train.csv")
    flipped = frame[:50].with_columns((1 - pl.col("label")).alias("label"))
    pl.concat([frame, flipped]).write_csv(tmp_path / "train.csv")
    table = ds.read_embedllm(tmp_path, block_bytes=50_000)
    np.testing.assert_array_equal(table.performance[0, :50], np.ones(50))
    np.testing.assert_array_equal(table.performance[0, 50:], labels[0, 50:])
    assert table.notes == ("collapsed 50 repeated rows by max",)


def test_embedllm_faults_are_named(tmp_path):
    schemas.write_embedllm(tmp_path)
    file = tmp_path / "train.csv"
    frame = pl.read_csv(file)
    at = pl.int_range(pl.len()) == 700
    faults = {
        "column 'label' is missing": frame.drop("label"),
        r"row 700, column 'label' must be in \[0, 1\], got '3'": frame.with_columns(
            pl.when(at).then(3).otherwise(pl.col("label")).alias("label")
        ),
        "row 700, column 'prompt': prompt id '6' has two": frame.with_columns(
            pl.when(at).then(pl.lit("other")).otherwise(pl.col("prompt")).alias("prompt")
        ),
        "LLM 'nameless/chat' cannot be priced, its name states no size": frame.with_columns(
            pl.when(at).then(pl.lit("nameless/chat")).otherwise("model_name").alias("model_name")
        ),
    }
    for words, spoilt in faults.items():
        spoilt.write_csv(file)
        with pytest.raises(ds.TableError, match=words):
            ds.read_embedllm(tmp_path, block_bytes=20_000)
    frame.write_csv(file)
    whole = file.read_bytes()
    file.write_bytes(whole[: whole.rindex(b'"')])  # ends inside a quoted prompt
    with pytest.raises(ds.TableError, match="train.csv"):
        ds.read_embedllm(tmp_path)


def test_sprout_costs_are_tokens_times_price_at_its_14_llms(tmp_path):
    truth = schemas.write_sprout(tmp_path)
    table = ds.read_sprout(tmp_path)
    assert table.servers == schemas.SPROUT_LLMS
    np.testing.assert_array_equal(table.performance, truth["score"])
    j = table.servers.index("aws-claude-3-5-sonnet-v1")
    tokens = truth["num_input_tokens"][:, j], truth["num_output_tokens"][:, j]
    np.testing.assert_allclose(table.cost[:, j], (3 * tokens[0] + 15 * tokens[1]) / 1e6)
    assert table.prompt_ids[8] == "validation:0"
    assert "made-up content" in ds.dataset("sprout").read(tmp_path).stand_in


def test_sprout_is_strict_about_structs_alone(tmp_path):
    schemas.write_sprout(tmp_path)
    for file in (tmp_path / "data").glob("*.parquet"):
        frame = pl.read_parquet(file).drop("key", "dataset", "golden_answer", "dataset idx")
        frame.with_columns(pl.lit(1).alias("extra")).write_parquet(file)
    assert ds.read_sprout(tmp_path).num_prompts == 16
    file = tmp_path / "data" / "train-00000-of-00001.parquet"
    frame = pl.read_parquet(file)
    frame.with_columns(
        pl.col("openai-gpt-4o").struct.rename_fields(["a", "b", "c", "d"])
    ).write_parquet(file)
    with pytest.raises(ds.TableError, match="'openai-gpt-4o' is a struct without the field"):
        ds.read_sprout(tmp_path)
    frame.rename({"openai-gpt-4o": "openai-new"}).write_parquet(file)
    with pytest.raises(ds.TableError, match="sprout.csv: LLM 'openai-new' of .* has no price"):
        ds.read_sprout(tmp_path)


def test_shipped_prices_and_sizes(tmp_path):
    assert set(prices.read_prices(prices.shipped("sprout"))) == set(schemas.SPROUT_LLMS)
    sizes = prices.read_size_prices(prices.shipped("embedllm"))
    names = {
        "meta-llama/Llama-2-7b-chat-hf": 0.2, "mistralai/Mixtral-8x7B-v0.1": 0.6,
        "x/Yi-34B": 0.8, "x/opt-1.3b": 0.1, "microsoft/phi-2": 0.1, "x/qwen-72B": 0.9,
        "zhengr/MixTAO-7Bx2-MoE-v8.1": 0.6, "x/llama-2-70b": 0.9, "x/SOLAR-10.7B": 0.3,
    }  # fmt: skip
    assert {name: prices.price_by_size(name, sizes) for name in names} == names
    for name in ("x/CatPPT-base", "x/grok-314b"):
        with pytest.raises(ds.TableError, match=f"'{name}' cannot be priced"):
            prices.price_by_size(name, sizes)
    bad = tmp_path / "bad.csv"
    bad.write_text("kind,key,usd_per_million_tokens,source,date\ndense,4,-1,x,y\n")
    with pytest.raises(
        ds.TableError, match="row 0, column 'usd_per_million_tokens' must be at least"
    ):
        prices.read_size_prices(bad)


# -- utilities --------------------------------------------------------------------------------


def loop_probabilities(performance, cost, rho, low, high):
    """The appendix, a cell at a time, on normalised costs."""
    out = np.zeros(performance.shape)
    for i in range(performance.shape[0]):
        raw = [p - rho * c for p, c in zip(performance[i], cost[i], strict=True)]
        for j, value in enumerate(raw):
            out[i, j] = low + (high - low) * (value - min(raw)) / (max(raw) - min(raw))
    return out


@settings(max_examples=30, deadline=None)
@given(
    st.integers(0, 10_000),
    st.sampled_from([rule for rule in ds.COST_RULES if rule != "none"]),
    st.floats(0.5, 10),
)
def test_probabilities_are_the_appendix(seed, rule, rho):
    rng = np.random.default_rng(seed)
    performance, cost = rng.uniform(size=(7, 4)), rng.exponential(size=(7, 4))
    normal = ds.normalise_cost(cost, rule)
    assert normal.min() >= 0
    assert normal.max() <= 1
    np.testing.assert_allclose(ds.normalise_cost(1e-5 * cost, rule), normal, atol=1e-12)
    chance = ds.departure_probabilities(performance, cost, rho, cost_rule=rule)
    np.testing.assert_allclose(chance, loop_probabilities(performance, normal, rho, 0.1, 0.99))
    np.testing.assert_allclose(1 / (1 + np.exp(-ds.mnl_utilities(chance))), chance)


def test_equal_rows_and_wrong_settings():
    performance, cost = np.full((2, 3), 0.5), np.full((2, 3), 0.01)
    assert ds.departure_probabilities(performance, cost)[0].tolist() == [0.545] * 3
    best = ds.departure_probabilities(performance, cost, equal_rows=1.0)
    np.testing.assert_allclose(best, 0.99)
    for wrong in ({"rho": -1}, {"low": 0}, {"high": 1}, {"cost_rule": "x"}, {"equal_rows": 2}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            ds.departure_probabilities(performance, cost, **wrong)
    with pytest.raises(ValueError, match="strictly between"):
        ds.mnl_utilities(np.array([[0.0, 0.5]]))


def test_the_default_rule_gives_the_documented_rates_of_the_slice(shared_data):
    table = ds.read_routerbench(shared_data / "routerbench")
    departs = ds.departure_probabilities(table.performance, table.cost)
    means = departs.mean(axis=0)
    assert (round(departs.mean(), 2), round(means.max(), 2)) == (0.67, 0.85)
    assert table.servers[means.argmax()] == "zero-one-ai/Yi-34B-Chat"


# -- splits -----------------------------------------------------------------------------------


def test_splits_are_disjoint_whole_and_depend_on_the_seed_alone():
    one, again, other = ds.split(3164, 1000, 7), ds.split(3164, 1000, 7), ds.split(3164, 1000, 8)
    assert len(one.pool) == 1000
    assert sorted([*one.pool, *one.offline]) == list(range(3164))
    np.testing.assert_array_equal(one.pool, again.pool)
    assert set(one.pool) != set(other.pool)
    # two independent pools share 1000 * 1000 / 3164 = 316 on average, sd 12
    assert abs(len(set(one.pool) & set(other.pool)) - 316) < 60
    for wrong in (0, 3164):
        with pytest.raises(ValueError, match="pool_size"):
            ds.split(3164, wrong, 0)


def test_a_planted_evaluation_prompt_is_caught_by_row_id_and_text(shared_data):
    table, _ = ds.load_dataset("mmlu_pro", shared_data)
    parts = ds.split(table.num_prompts, 1000, 0)
    clean = ds.without_twins(parts, table.prompts)
    ds.check_no_leak(clean.pool, clean.offline, table.prompt_ids, table.prompts)
    assert len(clean.offline) < len(parts.offline), "MMLU-Pro repeats texts under other ids"
    with pytest.raises(ValueError, match="has the same text as pool row"):
        ds.check_no_leak(parts.pool, parts.offline, table.prompt_ids, table.prompts)
    planted = np.append(clean.offline, clean.pool[3])
    with pytest.raises(ValueError, match="is itself in the online pool"):
        ds.check_no_leak(clean.pool, planted, table.prompt_ids, table.prompts)
    prompts = list(table.prompts)
    prompts[clean.offline[5]] = prompts[clean.pool[0]] + "\n"
    with pytest.raises(ValueError, match="same text"):
        ds.check_no_leak(clean.pool, clean.offline, table.prompt_ids, prompts)
