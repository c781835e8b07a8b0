"""The other datasets: official schemas, what is dropped and counted, planted faults."""

import csv
import re

import dataset_files as schemas
import numpy as np
import polars as pl
import pytest

from cqbjax import datasets as ds
from cqbjax.datasets.readers import prices


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
        "row 1, column 'score|m' must be a number": frame.with_columns(
            pl.lit("?").alias("score|m")
        ),
        "'cost|m' must not be negative": frame.with_columns(pl.lit(-1.0).alias("cost|m")),
        "'cost|m' is missing": frame.with_columns(pl.lit(None, pl.Float64).alias("cost|m")),
        "column 'score| m' must end in the name": frame.with_columns(
            pl.col("score|m").alias("score| m"), pl.col("cost|m").alias("cost| m")
        ),
        "rows 1 and 2, column 'prompt_id': 'a' occurs twice": frame.with_columns(
            pl.lit("a").alias("prompt_id")
        ),
    }
    for words, spoilt in faults.items():
        spoilt.write_csv(file)
        with pytest.raises(ds.TableError, match=words.replace("|", r"\|")):
            ds.read_compact(file)
    header, *rows = frame.write_csv().splitlines()
    doubled = [f"{header},score|m,cost|m", *(f"{row},0.5,0.1" for row in rows)]
    file.write_text("\n".join(doubled))
    with pytest.raises(ds.TableError, match=r"column 'score\|m' stands there twice"):
        ds.read_compact(file)
    (tmp_path / "x.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(ds.TableError, match="not readable"):
        ds.read_compact(tmp_path / "x.parquet")


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_compact_csv_may_quote_names_and_keeps_ids_as_they_are_written(end, tmp_path):
    llms = ['meta/llama 3,1="70b"|x', "gpt-4o#mini", "模型"]
    cells = [f"{kind}|{name}" for kind in ("score", "cost") for name in llms]
    header = ["prompt_id", "prompt", "source", *cells]
    rows = [[f"{i:03d}", f"{i}.50", "s", i % 2, 1, 1, 1, 1, 1] for i in range(150)]
    rows.append(["a", "what?", "s", 0.5, 1, 1, 1, 1, 1])
    file = tmp_path / "own.csv"
    with file.open("w", encoding="utf-8-sig", newline="") as out:
        csv.writer(out, quoting=csv.QUOTE_NONNUMERIC, lineterminator=end).writerows([header, *rows])
    table = ds.read_compact(file)
    assert list(table.servers) == llms and table.performance[-1, 0] == 0.5
    assert table.prompt_ids[:2] == ("000", "001") and table.prompts[1] == "1.50"
    ds.cache.save_dataset(tmp_path, table, np.ones((151, 2)))
    assert list(ds.read_compact(tmp_path / "table.parquet").servers) == llms


def test_ids_are_equal_whatever_their_type(tmp_path):
    ids = [pl.Series([1, 2]), pl.Series([1.0, 2.0]), pl.Series(["1", "2"], dtype=pl.Categorical)]
    for column in (*ids, pl.Series(["1", "2"])):
        frame = pl.DataFrame({"prompt_id": column, "prompt": ["x", "y"], "source": "s"})
        frame.with_columns(
            pl.lit(1.0).alias(f"{kind}|{llm}") for kind in ("score", "cost") for llm in "mn"
        ).write_parquet(tmp_path / "own.parquet")
        assert ds.read_compact(tmp_path / "own.parquet").prompt_ids == ("1", "2")


def test_embedllm_is_read_with_112_llms(tmp_path):
    labels, texts = schemas.write_embedllm(tmp_path)
    table = ds.read_embedllm(tmp_path)
    assert table.num_servers == 112
    assert table.servers == schemas.EMBEDLLM_LLMS
    assert table.prompts == texts
    np.testing.assert_array_equal(table.performance, labels)
    assert (table.cost == table.cost[0]).all()
    # 0.6 USD a million tokens, 1,000 tokens a query.
    eight = next(j for j, name in enumerate(table.servers) if "8x7B" in name)
    assert table.cost[0, eight] == pytest.approx(0.6e-3)
    entry = ds.find_dataset("embedllm").read(tmp_path, None)
    assert "made-up content" in entry.proxy_note


def test_embedllm_duplicates_collapse_by_max_and_are_counted(tmp_path):
    labels, _ = schemas.write_embedllm(tmp_path)
    frame = pl.read_csv(tmp_path / "train.csv")
    flipped = frame[:50].with_columns((1 - pl.col("label")).alias("label"))
    pl.concat([frame, flipped]).write_csv(tmp_path / "train.csv")
    table = ds.read_embedllm(tmp_path)
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
        r"row 701, column 'label' must be in \[0, 1\], got '3'": frame.with_columns(
            pl.when(at).then(3).otherwise(pl.col("label")).alias("label")
        ),
        "row 701, column 'prompt': prompt id '6' has two": frame.with_columns(
            pl.when(at).then(pl.lit("other")).otherwise(pl.col("prompt")).alias("prompt")
        ),
        r"1 LLM cannot be priced \('nameless/chat'\)": frame.with_columns(
            pl.when(at).then(pl.lit("nameless/chat")).otherwise("model_name").alias("model_name")
        ),
    }
    for words, spoilt in faults.items():
        spoilt.write_csv(file)
        with pytest.raises(ds.TableError, match=words):
            ds.read_embedllm(tmp_path)
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
    assert table.prompt_ids[8] == "validation-00000-of-00001:0"
    assert "made-up content" in ds.find_dataset("sprout").read(tmp_path, None).proxy_note


def test_sprout_validates_only_the_struct_columns(tmp_path):
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
    with pytest.raises(ds.TableError, match=r"1 LLM cannot .*\('openai-new'\): give prices="):
        ds.read_sprout(tmp_path)


@pytest.mark.parametrize("name", ["routerbench", "embedllm", "sprout"])
def test_synthetic_content_is_marked_as_a_proxy(name, tmp_path):
    schemas.write(name, tmp_path, 20)
    table = ds.find_dataset(name).read(tmp_path, None)
    title = ds.find_dataset(name).title
    assert table.name == f"{title} (synthetic)"
    what = f"made-up content in the schema of {title}, standing in for its real data"
    assert table.proxy_note == what
    assert table.provenance == "generated"  # by which the report knows what it must not judge
    # Half of the rows claim a real origin: a mixture is no real data either.
    for file in tmp_path.rglob("*.*"):
        column = {"routerbench": "eval_name", "embedllm": "category", "sprout": "dataset"}[name]
        read = pl.read_parquet if file.suffix == ".parquet" else pl.read_csv
        frame = read(file)
        first = pl.int_range(pl.len()) < pl.len() // 2
        mixed = frame.with_columns(
            pl.when(first).then(pl.lit("mmlu")).otherwise(pl.col(column)).alias(column)
        )
        mixed.write_parquet(file) if file.suffix == ".parquet" else mixed.write_csv(file)
    table = ds.find_dataset(name).read(tmp_path, None)
    assert table.name == f"{title} (synthetic)"
    assert re.fullmatch(rf"\d+ of 20 prompts are {what}", table.proxy_note)
    assert table.provenance == "generated"


def test_sprout_faults_are_named_by_row_and_field(tmp_path):
    schemas.write_sprout(tmp_path)
    file = tmp_path / "data" / "train-00000-of-00001.parquet"
    frame = pl.read_parquet(file)
    llm = "openai-gpt-4o"

    def with_field(field: str, value: object, text: bool = False) -> pl.DataFrame:
        rows = frame[llm].to_list()
        if text:
            rows = [row | {field: str(row[field])} for row in rows]
        rows[3] |= {field: value}
        return frame.with_columns(pl.Series(llm, rows))

    where = rf"train-00000-of-00001.parquet: row 4 \(prompt id '3'\), column '{llm}', field "
    faults = {
        where + r"'score' must be in \[0, 1\], got 7.0": with_field("score", 7.0),
        rf"row 4, column '{llm}', field 'score' must be a number, got 'good'": with_field(
            "score", "good", text=True
        ),
        where + "'num_input_tokens' must not be negative, got -5.0": with_field(
            "num_input_tokens", -5
        ),
        where + "'num_output_tokens' is missing": with_field("num_output_tokens", None),
        "train-00000-of-00001.parquet: rows 1 and 2, column 'key': '0'": frame.with_columns(
            pl.lit("0").alias("key")
        ),
        "row 1, column 'key' is empty": frame.with_columns(pl.lit(None, pl.String).alias("key")),
    }
    for words, spoilt in faults.items():
        spoilt.write_parquet(file)
        with pytest.raises(ds.TableError, match=words):
            ds.read_sprout(tmp_path)
    with_field("score", None).write_parquet(file)
    table = ds.read_sprout(tmp_path)
    assert np.argwhere(np.isnan(table.performance)).tolist() == [[3, table.servers.index(llm)]]


def test_sprout_shards_without_keys_do_not_collide(tmp_path):
    schemas.write_sprout(tmp_path)
    file = tmp_path / "data" / "train-00000-of-00001.parquet"
    frame = pl.read_parquet(file).drop("key")
    frame[:4].write_parquet(tmp_path / "data" / "train-00000-of-00002.parquet")
    frame[4:].write_parquet(tmp_path / "data" / "train-00001-of-00002.parquet")
    file.unlink()
    table = ds.read_sprout(tmp_path)
    assert table.num_prompts == 16
    assert table.prompt_ids[3:5] == ("train-00000-of-00002:3", "train-00001-of-00002:0")
    frame.write_parquet(tmp_path / "train-00000-of-00002.parquet")
    with pytest.raises(ds.TableError, match="has the same name, each needs one of its own"):
        ds.read_sprout(tmp_path)


def test_embedllm_reads_a_quoted_header_and_notes_an_absent_file(tmp_path):
    labels, _ = schemas.write_embedllm(tmp_path)
    for part in ("train", "val"):
        file = tmp_path / f"{part}.csv"
        pl.read_csv(file).write_csv(file, quote_style="always", include_bom=True)
    (tmp_path / "test.csv").unlink()
    table = ds.read_embedllm(tmp_path)
    np.testing.assert_array_equal(table.performance, labels[:15])
    assert table.notes == ("read without test.csv",)
    assert ds.read_embedllm(tmp_path / "train.csv").notes == ()
    (tmp_path / "train.csv").write_text("")
    with pytest.raises(ds.TableError, match="train.csv: not readable.*empty CSV"):
        ds.read_embedllm(tmp_path)


def test_price_lists_are_validated_and_shipped_ones_cover_sprout(tmp_path):
    shipped = prices.read_prices(prices.shipped_prices("sprout"))
    assert len(shipped) == len(prices.find_prices(schemas.SPROUT_LLMS, shipped, tmp_path)) == 14
    with pytest.raises(
        ds.TableError, match=r"2 LLMs cannot be priced \('x/Yi-34B', 'x/grok-314b'\): .*prices="
    ):
        prices.find_prices(
            ["x/Yi-34B", "aws-claude-3-5-sonnet-v1", "x/grok-314b"], shipped, tmp_path
        )
    bad, header = tmp_path / "bad.csv", ",".join(prices.COLUMNS)
    for rows, message in {
        "a,1,-1,x,y": "row 1, column 'usd_per_million_output' must be at least 0, got -1.0",
        "a,?,1,x,y": "row 1, column 'usd_per_million_input' must be a number, got '\\?'",
        "a/b-1,1,1,x,y\nA__b_1,2,2,x,y": "row 2 names 'A__b_1' for the second time",
    }.items():
        bad.write_text(f"{header}\n{rows}\n")
        with pytest.raises(ds.TableError, match=message):
            prices.read_prices(bad)
    bad.write_text("kind,key,usd_per_million_tokens,source,date\ndense,4,0.1,x,y\n")
    with pytest.raises(ds.TableError, match="column 'model' is missing"):
        prices.read_prices(bad)


def test_every_embedllm_llm_has_a_price_in_every_spelling():
    file, names = prices.shipped_prices("embedllm"), schemas.EMBEDLLM_PAPER
    listed = prices.read_prices(file)
    assert len(set(names)) == 122
    priced = dict(zip(names, prices.find_prices(names, listed, file), strict=True))
    assert all(into == out for into, out in priced.values())
    expected = {
        "Qwen/Qwen1.5-0.5B-Chat": 0.1, "google/gemma-2b-it": 0.1, "bigscience/bloom-7b1": 0.2,
        "h2oai/h2ogpt-gm-oasst1-en-2048-open-llama-13b": 0.3, "CausalLM/34b-beta": 0.8,
        "OpenBuddy/openbuddy-codellama2-34b-v11.1-bf16": 0.8, "microsoft/phi-1.5": 0.1,
        "bigcode/octocoder": 0.3, "Plaban81/Moe-4x7b-math-reason-code": 0.6,
        "cloudyu/Mixtral-11Bx2-MoE-19B": 0.6, "Qwen/Qwen-72B": 0.9, "01-ai/Yi-6B-200K": 0.2,
    }  # fmt: skip
    assert {name: priced[name][0] for name in expected} == expected
    # The files write "org__name", and some names with other dots and dashes than the paper does.
    files = [name.replace("/", "__") for name in names]
    np.testing.assert_array_equal(prices.find_prices(files, listed, file), [*priced.values()])
    odd = ["openchat__openchat_3.5", "microsoft__phi-1_5", "JaeyeonKang__CCK_Asura_v1",
           "cloudyu__Mixtral_11Bx2_MoE_19B"]  # fmt: skip
    of_odd = prices.find_prices(odd, listed, file)
    assert of_odd[:, 0].tolist() == [0.2, 0.1, 0.9, 0.6]
