"""Logs in every form are read as the same requests, and what is wrong with them is named."""

import dataclasses
import gzip
import json
import sys

import numpy as np
import polars as pl
import pytest

from cqbjax.cli import __main__ as console
from cqbjax.log_analysis import requests, retries, summary
from cqbjax.logs.shards import LogError
from reproduction.planted_log import generate_log


def rows(count=40):
    """Return requests of eight users, each of whom asks one question five times in a row."""
    return [
        {
            "timestamp": f"2025-01-01T00:{i // 60:02}:{i % 60:02}Z", "user_id": f"user {i % 8}",
            "request_id": f"r{i}", "prompt": f"What is {i % 8} + {i % 8}?", "cost": 0.5,
            "model": "small" if i % 4 else "large", "latency_ms": 500,
        }
        for i in range(count)
    ]  # fmt: skip


def write(tmp_path, some, name="log.jsonl"):
    path = tmp_path / name
    path.write_text("".join(f"{json.dumps(one)}\n" for one in some))
    return path


def test_all_file_formats_give_the_same_requests(tmp_path):
    frame = pl.DataFrame(rows())
    paths = [tmp_path / f"log.{end}" for end in ("jsonl", "json", "csv", "parquet", "jsonl.gz")]
    frame.write_ndjson(paths[0])
    paths[1].write_text(json.dumps(rows(), indent=1))
    frame.write_csv(paths[2])
    frame.write_parquet(paths[3])
    paths[4].write_bytes(gzip.compress(paths[0].read_bytes()))
    logs = [requests.read_log(path) for path in paths]
    unsalted = [log.frame.drop("line", "request") for log in logs]
    assert all(one.equals(unsalted[0]) for one in unsalted)
    assert logs[0].models == ("small", "large") and logs[0].frame["latency"][0] == 0.5
    assert unsalted[0]["user"].n_unique() == unsalted[0]["text"].n_unique() == 8


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2025-01-01T00:00:01Z", 1735689601), ("2025-01-01 01:00:01+01:00", 1735689601),
        ("2024-12-31T19:00:01.5000000-0500", 1735689601.5), ("2025-01-01 00:00:01", 1735689601),
        ("1735689601", 1735689601), ("1735689601500", 1735689601.5),
        ("1735689601500000", 1735689601.5), ("12.5", 12.5), ("noon", None),
    ],
)  # fmt: skip
def test_timestamps_are_parsed(text, seconds):
    assert requests.parse_times(pl.Series([text]), []).to_list() == [seconds]


CHAT = [{"role": "user", "content": "Hello?"}, {"role": "assistant", "content": "Yes."}]
OF_FORM = {
    "LiteLLM spend log": {
        "request_id": "a", "startTime": "2025-01-01 00:00:00.5", "endTime": "2025-01-01 00:00:03",
        "spend": 0.25, "user": "u", "end_user": "", "model": "m", "completion_tokens": 3,
        "status": "failure", "metadata": "{}", "messages_": "",
    },
    "OpenAI-style chat log": {
        "messages": CHAT[:1], "model": "m", "created": 1735689600, "user": "u",
        "usage": {"completion_tokens": 3},
    },
    "ShareGPT": {
        "id": "u", "model": "m",
        "conversations": [{"from": "human", "value": "Hello?"}, {"from": "gpt", "value": "Yes."}],
    },
    "WildChat": {
        "conversation_hash": "c", "hashed_ip": "u", "model": "m",
        "timestamp": "2025-01-01T00:00:00+00:00", "conversation": CHAT,
    },
    "Open Bandit Pipeline": {
        "timestamp": "2025-01-01 00:00:00+00:00", "item_id": "m", "click": 1,
        "propensity_score": 0.25, "user_feature_0": "x",
    },
    "Vowpal Wabbit, dsjson": {
        "_label_cost": -1.0, "_label_probability": 0.25, "_label_Action": 2, "_labelIndex": 0,
        "Timestamp": "2025-01-01T00:00:00.0000000Z", "a": [2, 1],
        "c": {"Time": "day", "_multi": [{"_tag": "other"}, {"_tag": "m"}]},
    },
}  # fmt: skip


@pytest.mark.parametrize("name", OF_FORM)
def test_log_formats_are_recognised(name, tmp_path):
    log = requests.read_log(write(tmp_path, [OF_FORM[name]]))
    (row,) = log.frame.iter_rows(named=True)
    assert log.form == name and log.models == ("m",)
    if name == "LiteLLM spend log":
        assert (row["latency"], row["failed"], row["cost"], row["tokens"]) == (2.5, True, 0.25, 3)
    elif "propensity" in str(OF_FORM[name]) or "_label" in str(OF_FORM[name]):
        assert (row["propensity"], row["outcome"], row["user"]) == (0.25, 1.0, -1)
    assert log.with_prompts == (name not in ("LiteLLM spend log", *list(OF_FORM)[-2:]))
    assert log.timed == (name != "ShareGPT")


def test_invalid_rows_are_counted_and_too_many_raise(tmp_path):
    bad = [{**rows()[0], "timestamp": "noon"}, {**rows()[1], "model": None}, {"cost": -1}]
    path = write(tmp_path, [*rows(100), *bad])
    path.write_text("nonsense\n" + path.read_text())
    counts = {
        "not JSON": (1, 1), "no time that can be read": (1, 102), "no model": (2, 103),
    }  # fmt: skip
    assert requests.read_log(path).bad == counts
    with pytest.raises(LogError, match="4 of 104 rows cannot be used: not JSON .1, first in line"):
        requests.read_log(path, max_bad=0.01)
    with pytest.raises(ValueError, match="columns: no row has the field 'llm' for model"):
        requests.read_log(path, {"model": "llm"}, max_bad=1.0)


@pytest.mark.parametrize("text", ["[]", "a,b\n", '{"model": "m", "prompt": "x"'])
def test_logs_without_requests_are_refused_in_one_sentence(text, tmp_path):
    path = tmp_path / "log"
    path.write_text(text)
    with pytest.raises(LogError, match="has no usable request"):
        requests.read_log(path, max_bad=1.0)


def test_half_an_emoji_is_read(tmp_path):
    some = [one | {"prompt": f"\ud83d {i}"} for i, one in enumerate(rows(3))]
    assert requests.read_log(write(tmp_path, some)).words.shape[0] == 3


def test_anomalies_of_a_log_are_reported(tmp_path):
    some = rows()
    some[5], some[6] = some[6], some[5]
    some[7] |= {"timestamp": "2025-01-01T01:00:07+01:00", "status": "error"}
    some[8] |= {"model": "small-2025-01-01", "response": ""}
    notes = " ".join(requests.read_log(write(tmp_path, [*some, some[9]])).notes)
    for part in (
        "1 duplicates", "1 rows are earlier", "zones are mixed", "1 requests failed",
        "1 answers are empty", "small and small-2025-01-01 may be one LLM renamed",
    ):  # fmt: skip
        assert part in notes, notes


def test_linked_retries_match_marked_retries(tmp_path):
    frame, truth = generate_log(1, queries=400, marked=True)
    path = tmp_path / "log.jsonl"
    frame.write_ndjson(path)
    marked = retries.find_retries(requests.read_log(path))
    log = requests.read_log(path, {"retry_of": "thumb"})  # a column that names no request
    log = dataclasses.replace(log, frame=log.frame.with_columns(retry_of=0))
    linked = retries.find_retries(log)
    assert marked.rule is None and linked.rule is not None
    np.testing.assert_array_equal(marked.before, linked.before)
    assert marked.attempt.max() > 3 and (marked.query <= np.arange(frame.height)).all()
    rates = summary.tabulate_models(log, linked)
    failing = 1 - np.average(truth.departure, axis=0)
    assert abs(np.average(rates["retried"], weights=rates["requests"]) - failing.mean()) < 0.1


OUTCOMES = (  # as a log has them, and whether they count as satisfied
    (["thumbs_up", " Yes ", "bad", None, "perhaps"], [1, 1, 0, None, None]),
    ([True, False, True, None, True], [1, 0, 1, None, 1]),
    ([5, 4, 3, 1, None], [1, 1, 0, 0, None]), ([10, 8, 7, 1, 9], [1, 1, 0, 0, 1]),
    ([1, 0.5, 0.49, 0, None], [1, 1, 0, 0, None]), ([-1, 1, 0, 1, None], [0, 1, 0, 1, None]),
)  # fmt: skip


@pytest.mark.parametrize(("ratings", "known"), OUTCOMES)
def test_ratings_are_converted_to_outcomes(ratings, known, tmp_path):
    some = [one | {"rating": value} for one, value in zip(rows(5), ratings, strict=True)]
    log = requests.read_log(write(tmp_path, some), models={"large": "small"})
    assert log.frame["outcome"].to_list() == known and log.models == ("small",)


MARKED = {  # six requests, of two users in turn: the third retries the first, the last the fourth
    "retry_of": [None, None, "r0", None, None, "r3"],
    "query_id": ["a", "b", "a", "c", "d", "c"],
    "attempt": [1, 1, 2, 1, 1, 2],
    "is_retry": [False, False, True, False, False, True],
    "regenerated": [True, False, False, True, False, False],
}


@pytest.mark.parametrize("name", MARKED)
def test_every_retry_marker_links_to_the_previous_request(name, tmp_path):
    some = [one | {"user_id": f"user {i % 2}"} for i, one in enumerate(rows(6))]
    some = [one | {name: mark} for one, mark in zip(some, MARKED[name], strict=True)]
    found = retries.find_retries(requests.read_log(write(tmp_path, some)))
    assert found.before.tolist() == [-1, -1, 0, -1, -1, 3]
    assert found.attempt.tolist() == [1, 1, 2, 1, 1, 2]


def test_a_retry_must_come_within_the_gap(tmp_path):
    log = requests.read_log(write(tmp_path, rows()))
    assert (retries.find_retries(log).before >= 0).sum() == 32
    assert (retries.find_retries(log, max_gap=5.0).before >= 0).sum() == 0
    # The next request of a user comes 7.5 seconds after the answer: the last ones have no retry.
    found = retries.find_retries(log)
    labelled = found.labelled
    assert labelled.sum() == 32
    # Each of the others was retried, of either LLM.
    assert summary.tabulate_models(log, found)["retried"].to_list() == [1.0, 1.0]


def test_logs_store_no_prompts_or_user_names(tmp_path):
    log = requests.read_log(write(tmp_path, rows()))
    texts = [name for name, kind in log.frame.schema.items() if kind == pl.String]
    assert not texts
    assert "user 3" not in str(log) and "What is" not in str(log)


def test_describe_reports_missing_fields_and_reasons_for_missing_retries(
    tmp_path, monkeypatch, capsys
):
    def call(*words):
        monkeypatch.setattr(sys, "argv", ["cqbjax", "log", "describe", *words])
        console.main()
        return " ".join(capsys.readouterr().out.split())

    text = call(str(write(tmp_path, rows())))
    assert "40 requests of 40 rows, 2 LLMs, 8 users" in text and "80.0% of requests" in text
    text = call(str(write(tmp_path, rows())), "max_gap=5")
    assert "within 5 s of the answer: 0.0% of requests" in text
    alone = [{key: one[key] for key in ("timestamp", "model")} for one in rows()]
    text = call(str(write(tmp_path, alone)))
    assert "No retries: the log marks no retries and has no user" in text
    with pytest.raises(SystemExit):
        call(str(write(tmp_path, rows())), "max_bat=1")
    assert "max_bat=1 is unknown here: did you mean max_bad" in capsys.readouterr().err
