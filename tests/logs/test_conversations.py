"""Logs in the official schema: what is kept of every row, what is dropped, what is refused."""

import sys
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from log_files import SECOND, by_words, prepare_log

from cqbjax.logs import conversations, linking, prepare, shards
from cqbjax.logs import replay as replaying
from cqbjax.logs.prepare import MODEL
from cqbjax.logs.shards import LogError
from reproduction import generated_log

BEGIN = 1_700_000_000 * SECOND
ANSWER = "word" * 60  # 60 tokens: 2 seconds, after 2.84 for the first


def row(at=0, prompt="How do I sort a list?", ip="a1", model=MODEL, **changed):
    """Return a conversation whose user arrives `at` seconds after the beginning."""
    answered = BEGIN + round((at + 2.84 + 2) * SECOND)
    return generated_log.make_conversation(model, ip, prompt, [(answered, ANSWER)], **changed)


def read(tmp_path, rows, size=2):
    file = tmp_path / "train-00000-of-00001.parquet"
    generated_log.write_shard(file, rows)
    shards.check_shards([file], MODEL)
    counts = conversations.read_log([file], MODEL, tmp_path / "out", size=size)
    return (
        counts,
        pl.read_parquet(tmp_path / "out" / conversations.CONVERSATIONS),
        pl.read_parquet(tmp_path / "out" / "texts.parquet")["text"].to_list(),
    )


def turns(*changes):
    """Return a conversation of two turns with fields changed in each."""
    made = row()["conversation"]
    for turn, change in zip(made, changes, strict=True):
        turn.update(change)
    return made


def test_arrival_times_follow_the_papers_formula(tmp_path):
    later = [(BEGIN + 10 * SECOND, "word" * 300), (BEGIN + 99 * SECOND, ANSWER)]
    _, log, texts = read(
        tmp_path, [generated_log.make_conversation(MODEL, "a1", "Why?", later), row(at=7)]
    )
    arrival = (log["arrival"].to_numpy() - BEGIN) / SECOND
    np.testing.assert_allclose(arrival, [10 - 2.84 - 10, 7], atol=2e-6)
    assert log["tokens"].to_list() == [300, 60] and log["prompt_tokens"].to_list() == [1, 6]
    assert ((log["answered"] - BEGIN) / SECOND).to_list() == [10, 11.84]
    assert ((log["ended"] - BEGIN) / SECOND).to_list() == [99, 11.84]
    assert texts == ["Why?", "How do I sort a list?"]


def two_answers(**changed):
    """Return a conversation whose last response, half a minute on, has no time of its own."""
    answers = [(BEGIN + 10 * SECOND, ANSWER), (BEGIN + 40 * SECOND, ANSWER)]
    made = generated_log.make_conversation(MODEL, "a1", "Why?", answers, **changed)
    made["conversation"][-1]["timestamp"] = None
    return made


def test_last_response_without_timestamp_uses_the_time_of_the_row(tmp_path):
    """Else what is asked again before it would be taken for a retrial."""
    again = generated_log.make_conversation(MODEL, "a1", "Why?", [(BEGIN + 30 * SECOND, ANSWER)])
    _, log, _ = read(tmp_path, [two_answers(), again])
    assert ((log["ended"] - BEGIN) / SECOND).to_list() == [40, 30]
    assert ((log["answered"] - BEGIN) / SECOND).to_list() == [10, 30]
    made = linking.link_conversations(log, None, linking.LinkingRule(1.0))
    assert (made.identical, made.early) == (0, 1)


def test_users_are_identified_by_row_address_and_then_by_first_turn(tmp_path):
    """Where the row has none, that of the first turn counts."""
    rows = []
    for i, (ip, one) in enumerate((("a1", "a2"), ("a1", "a3"), ("a1", None), (None, "a1"))):
        made = row(at=i)["conversation"]
        made[0]["hashed_ip"] = one
        rows.append(row(hashed_ip=ip, conversation=made))
    counts, log, _ = read(tmp_path, [*rows, row(ip="a2")])
    assert counts.users == 2 and log["user"].to_list() == [0, 0, 0, 0, 1]


def test_every_row_is_read_or_counted_with_the_reason(tmp_path):
    rows = [
        row(),
        row(model="gpt-3.5-turbo"),
        row(model=None),
        row(conversation=[]),
        row(conversation=None),
        row(conversation=turns({"content": None}, {})),
        row(conversation=turns({"content": "  \n"}, {})),
        row(conversation=turns({"role": "assistant"}, {})),
        row(conversation=turns({}, {"content": None})),
        row(conversation=turns({}, {})[:1]),
        row(hashed_ip=None, conversation=turns({"hashed_ip": None}, {})),
        row(2, hashed_ip=None),
        row(3, conversation=turns({}, {"timestamp": None})),
        row(4, timestamp=None),
        row(timestamp=None, conversation=turns({}, {"timestamp": None})),
        two_answers(timestamp=None),
        generated_log.make_conversation(MODEL, "a1", "Why?", [(BEGIN + 9, "x"), (BEGIN + 8, "y")]),
        generated_log.make_conversation(MODEL, "a2", "Why?", [(BEGIN + 8, "x"), (BEGIN + 9, "y")]),
        row(conversation=turns({}, {"content": ""})),
        row(conversation=turns({}, {"content": " \n"})),
        row(),
    ]
    counts, log, _ = read(tmp_path, rows)
    assert counts.rows == len(rows) == counts.others + counts.used + sum(counts.dropped.values())
    assert (counts.others, counts.used, counts.users) == (2, 5, 2)
    assert counts.dropped == {
        "empty conversation": 2, "no first prompt": 3, "no assistant response": 2,
        "no hashed IP": 1, "no timestamp of the first assistant response": 1,
        "no timestamp of the last assistant response": 1,
        "timestamps out of order": 1, "empty assistant response": 2,
        "duplicate of an earlier row": 1,
    }  # fmt: skip
    file = "train-00000-of-00001.parquet"
    assert counts.first["empty assistant response"] == f"row 19 of {file}"
    assert counts.first["duplicate of an earlier row"] == f"row 21 of {file}"
    # Without its own, a lone response takes the row's timestamp, and a row its first turn's IP.
    assert log["row"].to_list() == [0, 11, 12, 13, 17] and log["user"].to_list() == [0, 0, 0, 0, 1]
    assert log["answered"][2] == log["answered"][0] + 3 * SECOND


def test_duplicated_rows_do_not_change_the_chains(tmp_path):
    rows = [row(at=60 * i, prompt=f"prompt {i % 4}", ip=f"u{i % 3}") for i in range(24)]
    once, twice = tmp_path / "once", tmp_path / "twice"
    generated_log.write_shard(once / "train-0.parquet", rows)
    generated_log.write_shard(twice / "train-0.parquet", rows[:12])
    generated_log.write_shard(twice / "train-1.parquet", [*rows[12:], *rows])
    made, lines = [], []
    for source in (once, twice):
        prepare.prepare(tmp_path / f"of {source.name}", source, encoder="none", progress=False)
        log = prepare.load_log(tmp_path / f"of {source.name}")
        made.append(prepare.link(log, linking.LinkingRule(1.0)))
        lines.append(prepare.describe(log, made[-1], linking.LinkingRule(1.0)))
    assert sorted(made[0].lengths) == sorted(made[1].lengths)
    assert made[0].identical == made[1].identical
    message = "24 rows dropped: duplicate of an earlier row 24 (first: row 13 of train-1.parquet)"
    assert message in lines[1] and not any("dropped" in line for line in lines[0])


@pytest.mark.parametrize("late", [1e6, -1.69e9])
def test_a_clock_that_jumps_is_reported_with_the_first_row(late, tmp_path):
    times = [60.0 * i + late * (i >= 15) for i in range(30)]
    for jumps, rows in ((0, range(15)), (1, range(30))):
        folder = tmp_path / str(jumps)
        generated_log.write_shard(
            folder / "train-0.parquet", [row(times[i], f"prompt {i % 4}") for i in rows]
        )
        prepare.prepare(folder / "data", folder, encoder="none", progress=False)
        log, rule = prepare.load_log(folder / "data"), linking.LinkingRule(1.0)
        warnings = [line for line in prepare.describe(log, prepare.link(log, rule), rule)
                if "clock" in line]  # fmt: skip
        assert len(warnings) == jumps == log.counts.jumps
    after = 16 if late > 0 else 1
    assert f"before row {after} of train-0.parquet" in warnings[0]


def test_text_that_is_not_utf8_stays_distinct(tmp_path):
    rows = [row(), row(prompt="broken X"), row(prompt="broken Y"), row(9, prompt="broken X")]
    file = tmp_path / "train-0.parquet"
    generated_log.write_shard(file, rows)
    content = file.read_bytes()
    # Uncompressed and undictionaried, so that the bytes can be broken in place.
    table = pq.read_table(file)
    pq.write_table(table, file, compression="none", use_dictionary=False, write_statistics=False)
    content = file.read_bytes()
    assert content.count(b"broken X") == 2
    file.write_bytes(
        content.replace(b"broken X", b"broken \xff").replace(b"broken Y", b"broken \xfe")
    )
    counts = conversations.read_log([file], MODEL, tmp_path / "out")
    log = pl.read_parquet(tmp_path / "out" / conversations.CONVERSATIONS)
    assert (counts.used, counts.repaired, counts.texts) == (4, 3, 3)
    assert log["text"].to_list() == [0, 1, 2, 1]
    assert (
        pl.read_parquet(tmp_path / "out" / "texts.parquet")["text"].to_list()[1:]
        == ["broken \ufffd"] * 2
    )


def retyped(name, kind):
    """Return the official schema with another type of a field of turns."""
    items = generated_log.SCHEMA.field("conversation").type.value_type
    changed = pa.struct([(name, kind) if field.name == name else field for field in items])
    where = generated_log.SCHEMA.get_field_index("conversation")
    return generated_log.SCHEMA.set(where, pa.field("conversation", pa.list_(changed)))


@pytest.mark.parametrize(
    ("name", "kind", "value", "message"),
    [
        ("timestamp", pa.int64(), 1_700_000_000_000, "timestamp of a turn must be a time or ISO"),
        ("timestamp", pa.float64(), 1.7e9, "must be a time or ISO text of one, it is double"),
        ("content", pa.list_(pa.string()), ["a"], "content of a turn must be text, it is list"),
        ("role", pa.int64(), 1, "role of a turn must be text, it is int64"),
    ],
)
def test_a_field_of_another_type_is_one_sentence(tmp_path, name, kind, value, message):
    made = [{**turn, name: value} for turn in row()["conversation"]]
    file = tmp_path / "train-0.parquet"
    table = pa.Table.from_pylist([row(conversation=made)], retyped(name, kind))
    pq.write_table(table, file)
    with pytest.raises(LogError, match=message) as refusal:
        prepare_log(tmp_path, file)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("text", ["1700000000000", "1700000000", "20231114", "soon"])
def test_digits_are_not_parsed_as_timestamps(text):
    assert conversations.parse_time(text) is None


@pytest.mark.parametrize("zone", ["UTC", None, "text", "text UTC"])
def test_timestamps_may_be_times_or_text(tmp_path, zone):
    table = pa.Table.from_pylist([row(), row(at=50)], generated_log.SCHEMA)
    whole = table.to_pylist()
    for one in whole:
        for turn in one["conversation"]:
            if turn["timestamp"] is not None and zone != "UTC":
                naive = turn["timestamp"].replace(tzinfo=None)
                text = naive.isoformat() + ("+00:00" if zone == "text UTC" else "")
                turn["timestamp"] = text if zone and zone.startswith("text") else naive
    kind = pa.timestamp("us", "UTC") if zone == "UTC" else pa.timestamp("ms")
    if zone and zone.startswith("text"):
        kind = pa.string()
    file = tmp_path / "train-0.parquet"
    pq.write_table(pa.Table.from_pylist(whole, retyped("timestamp", kind)), file)
    conversations.read_log([file], MODEL, tmp_path / "out")
    arrival = pl.read_parquet(tmp_path / "out" / conversations.CONVERSATIONS)["arrival"].to_numpy()
    np.testing.assert_allclose((arrival - BEGIN) / SECOND, [0, 50], atol=1e-3)


def test_batch_size_does_not_change_the_parsed_log(tmp_path):
    rows = [row(at=9 * i, prompt=f"prompt {i % 5}", ip=f"u{i % 3}") for i in range(23)]
    frames = [read(tmp_path, rows, size)[1] for size in (1, 7, 100)]
    assert frames[0].equals(frames[1]) and frames[1].equals(frames[2])


def test_missing_columns_are_reported_with_the_present_ones(tmp_path):
    file = tmp_path / "train-0.parquet"
    for column in shards.COLUMNS:
        generated_log.write_shard(file, [row()])
        pq.write_table(pq.read_table(file).drop_columns([column]), file)
        with pytest.raises(LogError, match=f"lacks column '{column}', it has conversation_hash"):
            prepare_log(tmp_path, file)
    for name in shards.TURN_FIELDS:
        made = [{k: v for k, v in turn.items() if k != name} for turn in row()["conversation"]]
        table = pa.Table.from_pylist([{**row(), "conversation": made}])
        pq.write_table(table, file)
        with pytest.raises(LogError, match=f"turns of conversation lack '{name}', they have"):
            prepare_log(tmp_path, file)
    pq.write_table(pa.Table.from_pylist([{**row(), "conversation": "text"}]), file)
    with pytest.raises(LogError, match="conversation must be a list of structs, it is string"):
        prepare_log(tmp_path, file)


def test_files_that_are_not_logs_are_rejected_before_writing(tmp_path):
    wrong = tmp_path / "train-0.parquet"
    wrong.write_text("model,timestamp\n")
    cases = {
        wrong: "train-0.parquet: not a Parquet file, or cut short",
        tmp_path / "none": "none: no such file or folder",
        tmp_path / "empty": "empty: no shard there, neither data/train-",
    }
    (tmp_path / "empty").mkdir()
    for source, message in cases.items():
        with pytest.raises(LogError, match=message) as refusal:
            prepare_log(tmp_path / "data", source)
        assert "\n" not in str(refusal.value)
    generated_log.write_shard(wrong, [row()])
    whole = wrong.read_bytes()
    wrong.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(LogError, match="not a Parquet file, or cut short"):
        prepare_log(tmp_path / "data", wrong)
    assert not list((tmp_path / "data").rglob("*.parquet"))


def test_unknown_model_is_rejected_with_the_models_of_the_log(tmp_path):
    file = tmp_path / "train-0.parquet"
    generated_log.write_shard(file, [row(), row(), row(model="gpt-4-0314")])
    with pytest.raises(LogError) as refusal:
        prepare_log(tmp_path, file, model="gpt-5")
    assert str(refusal.value) == (
        f"no conversation with model 'gpt-5': there are {MODEL} (2), gpt-4-0314 (1)."
    )


def test_a_log_without_timestamps_is_refused_with_the_count(tmp_path):
    file = tmp_path / "train-0.parquet"
    gone = {"timestamp": None}
    generated_log.write_shard(file, [row(timestamp=None, conversation=turns({}, gone))] * 3)
    with pytest.raises(LogError, match=r"can be used: no timestamp of .* response \(3\)"):
        prepare_log(tmp_path, file)
    assert not list(tmp_path.rglob("meta.json")), "an unfinished entry does not count"


def test_logs_are_prepared_once_per_encoder(tmp_path, monkeypatch):
    file = tmp_path / "train-0.parquet"
    generated_log.write_shard(file, [row(), row(at=60)], proxy_note="two rows standing in")
    other = "other words", lambda texts: -by_words(texts)
    first = prepare_log(tmp_path, file)
    again = prepare_log(tmp_path, file)
    assert first.built and not again.built and first.key == again.key
    log = prepare.load_log(tmp_path)
    assert (log.frame.height, log.proxy_note) == (2, "two rows standing in")
    assert log.name == "generated log" and log.counts.used == 2 and log.encoder == "words"
    assert log.embeddings.dtype == np.float16
    own = log.embeddings.copy()
    assert prepare_log(tmp_path, file, *other).built
    np.testing.assert_array_equal(prepare.load_log(tmp_path).embeddings, -own)
    encoders = []

    def embed(texts, model, **rest):
        encoders.append(model)
        return by_words(texts)

    monkeypatch.setattr(prepare, "embed", embed)
    monkeypatch.setattr(prepare, "load_encoder", lambda *_: None)
    assert prepare.prepare(tmp_path, file, progress=False).key != first.key
    assert encoders == ["sentence-transformers/paraphrase-multilingual-mpnet-base-v2"]
    assert prepare.load_log(tmp_path).encoder == prepare.ENCODER


def test_missing_encoder_is_reported_before_reading(tmp_path, monkeypatch):
    file = tmp_path / "train-0.parquet"
    generated_log.write_shard(file, [row()])
    monkeypatch.setattr(conversations, "read_log", lambda *_: pytest.fail("it was read"))
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(ValueError, match=r"needs sentence_transformers.*cqbjax\[embed\]"):
        prepare.prepare(tmp_path, file, progress=False)


def test_missing_pyarrow_is_reported_with_its_extra(tmp_path, monkeypatch):
    file = tmp_path / "train-0.parquet"
    generated_log.write_shard(file, [row()])
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ValueError, match=r"conversation log needs pyarrow.*cqbjax\[wildchat\]"):
        prepare.prepare(tmp_path, file, encoder="none", progress=False)


def test_a_refused_log_leaves_no_files(tmp_path):
    file = tmp_path / "train-0.parquet"
    gone = {"timestamp": None}
    generated_log.write_shard(file, [row(timestamp=None, conversation=turns({}, gone))])
    with pytest.raises(LogError, match="can be used"):
        prepare.prepare(tmp_path / "data", file, encoder="none", progress=False)
    assert not (tmp_path / "data").exists()
    # Corrected, it is read: no checksum of what was refused is left.
    generated_log.write_shard(file, [row(), row(at=60)])
    assert prepare.prepare(tmp_path / "data", file, encoder="none", progress=False).built


def test_embeddings_of_a_log_are_joined_by_the_hash_of_a_conversation(tmp_path):
    file, own = tmp_path / "train-0.parquet", tmp_path / "own.parquet"
    rows = [row(60 * i, f"prompt {i}", model=MODEL if i % 2 else "other") for i in range(6)]
    generated_log.write_shard(file, rows)
    vectors = np.eye(6)
    order = np.random.default_rng(0).permutation(6)
    columns = {"conversation_hash": [one["conversation_hash"] for one in rows],
               "embedding": vectors.tolist()}  # fmt: skip
    pl.DataFrame(columns)[order].write_parquet(own)
    prepare.prepare(tmp_path, file, embeddings=own, progress=False)
    np.testing.assert_array_equal(prepare.load_log(tmp_path).embeddings, vectors[1::2])
    pl.DataFrame(columns).filter(pl.int_range(6) != 3).write_parquet(own)
    missing = columns["conversation_hash"][3]
    with pytest.raises(ValueError, match=f"lacks conversation_hash '{missing}': they must be"):
        prepare.prepare(tmp_path, file, embeddings=own, progress=False)


@pytest.mark.slow
def test_identical_prompts_need_no_encoder(tmp_path):
    file = tmp_path / "train-0.parquet"
    generated_log.write_shard(file, [row(), row(at=60), row(at=90, prompt="Why?")])
    prepare.prepare(tmp_path, file, encoder="none", progress=False)
    log = prepare.load_log(tmp_path)
    assert log.embeddings is None and log.encoder == "none"
    chains = prepare.link(log, linking.LinkingRule(1.0))
    assert chains.identical == 1
    seen = np.asarray(replaying.make_contexts(log, chains, np.array([0, 1, 0])))
    assert not seen[:, : replaying.PROMPT_DIM].any() and seen[:, replaying.PROMPT_DIM :].any()
    assert any(
        "no prompt is embedded" in s for s in prepare.describe(log, chains, linking.LinkingRule(1))
    )
    with pytest.raises(LogError, match=r"threshold=0.995 needs embeddings"):
        prepare.link(log, linking.LinkingRule())


def test_user_defined_embeddings_are_assigned_by_row(tmp_path):
    """Of a text's rows the first counts; rows of other models are there, and are not read."""
    made = [row(model="gpt-4-0314"), row(), row(at=60, prompt="Why?"), row(at=90)]
    file, own = tmp_path / "train-0.parquet", tmp_path / "own.npy"
    generated_log.write_shard(file, made)
    np.save(own, np.array([[np.nan, 0], [3, 4], [0, 900], [7, 7]]))
    with pytest.raises(ValueError, match=r"but the log has 4 conversations and needs one row"):
        np.save(tmp_path / "short.npy", np.ones((3, 2)))
        prepare.prepare(tmp_path, file, embeddings=tmp_path / "short.npy", progress=False)
    with pytest.raises(LogError, match=r"embeddings=none.npy: no such file"):
        prepare.prepare(tmp_path, file, embeddings=Path("none.npy"))
    first = prepare.prepare(tmp_path, file, embeddings=own, progress=False)
    log = prepare.load_log(tmp_path)
    np.testing.assert_allclose(log.embeddings, [[0.6, 0.8], [0, 1]], rtol=1e-3)
    assert log.encoder == "own embeddings, own.npy"
    np.save(own, np.eye(4))
    assert prepare.prepare(tmp_path, file, embeddings=own, progress=False).key != first.key


def test_papers_log_is_recognised_by_rows_or_download(tmp_path, monkeypatch):
    folder = tmp_path / "our service"
    generated_log.write_shard(folder / "train-0.parquet", [row(), row(at=60, model="gpt-4-0314")])

    def origin_of():
        prepare_log(tmp_path, folder)
        log = prepare.load_log(tmp_path)
        return log.name, log.provenance, log.proxy_note

    assert origin_of() == ("our service", "own", "")
    monkeypatch.setattr(prepare, "ROWS", 2)
    assert origin_of() == ("WildChat-1M", "paper", "")
    monkeypatch.setattr(prepare, "ROWS", 3)
    assert origin_of() == ("our service", "own", "")
    downloaded = prepare.fetch(
        "wildchat", tmp_path, folder, ("", (), None), None, lambda path: [*path.glob("*.parquet")]
    )
    assert prepare._find_origin(downloaded, 2, "")["provenance"] == "own"
    there = downloaded._replace(revision="f" * 40)
    assert prepare._find_origin(there, 2, "")["provenance"] == "paper"


def test_token_counters_match_their_definition(monkeypatch):
    assert [conversations.count_by_bytes(text) for text in (b"", b"a", b"word", b"words")] == [
        0,
        1,
        1,
        2,
    ]
    monkeypatch.setitem(__import__("sys").modules, "tiktoken", None)
    with pytest.raises(LogError, match="tokens=cl100k_base needs tiktoken"):
        conversations.find_token_counter("cl100k_base")


def test_missing_prepared_log_is_reported_in_one_sentence(tmp_path):
    with pytest.raises(LogError, match=r"no conversation log is prepared there.*dataset=wildchat"):
        prepare.load_log(tmp_path)


def test_frames_hold_every_column(tmp_path):
    _, log, _ = read(tmp_path, [row()])
    assert log.columns == list(conversations.SCHEMA) and log.dtypes[0] == pl.Int64
