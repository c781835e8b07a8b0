"""The other datasets: official schemas, what is dropped and counted, planted faults."""

import numpy as np
import polars as pl
import pytest

from cqbjax import datasets as ds
from cqbjax.datasets import made_up as schemas
from cqbjax.datasets import prices


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
