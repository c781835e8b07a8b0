"""A made-up log whose truth is known: the example of `cqbjax log`, and the test of its estimates.

    python -m reproduction.planted_log

writes the example, `cqbjax/log_analysis/example.jsonl.gz`.
"""

import datetime
import gzip
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import yaml
from scipy.special import expit, softmax

_WORDS = yaml.safe_load(Path(__file__).with_name("made_up_words.yaml").read_text())["planted"]
TOPICS: dict[str, list[str]] = _WORDS["topics"]  # with what a prompt on each is about
EXAMPLE = Path(__file__).parents[1] / "cqbjax" / "log_analysis" / "example.jsonl.gz"
BEGIN = datetime.datetime(2025, 3, 3, tzinfo=datetime.UTC).timestamp()


class LogTruth(NamedTuple):
    """What a made-up log is made of.

    Attributes:
        departure: [topics, N] probability that a query departs after an attempt.
        satisfied: [topics, N] probability that an answer satisfies.
        routing: [topics, N] probability with which each LLM is chosen.
        usd: [N] mean cost of an answer.
        seconds: [N] mean latency.
    """

    departure: np.ndarray
    satisfied: np.ndarray
    routing: np.ndarray
    usd: np.ndarray
    seconds: np.ndarray


def generate_log(
    seed: int = 0, queries: int = 10_000, servers: int = 4, worth: float = 1.0,
    abandon: float = 0.1, mislabelled: float = 0.0, confounding: float = 1.0, hours: float = 168.0,
    rated: float = 0.1, marked: bool = False,
) -> tuple[pl.DataFrame, LogTruth]:  # fmt: skip
    """Generate a log and its truth.

    Args:
        seed: of everything drawn.
        queries: queries that users have; there are more requests, with retries.
        servers: N.
        worth: standard deviation of the log-odds of satisfaction between topics; at 0 the prompt
            says nothing on which LLM is better.
        abandon: probability that a user whom an answer does not satisfy leaves for good.
        mislabelled: share of satisfied users who ask nearly the same again, as if retrying.
        confounding: how much the LLM depends on the topic; at 0 it is drawn uniformly.
        hours: length of the log; arrivals follow the time of day.
        rated: share of answers with a thumb, of satisfied and of other users alike.
        marked: whether the log names the request that each one retries.
    """
    draw = np.random.default_rng(seed)
    topics = len(TOPICS)
    satisfied = expit(draw.normal(0.3, 0.6, servers) + worth * draw.normal(size=(topics, servers)))
    departure = satisfied + (1 - satisfied) * abandon
    routing = softmax(confounding * draw.normal(size=(topics, servers)), axis=1)
    routing = 0.9 * routing + 0.1 / servers
    usd, seconds = draw.uniform(1e-4, 4e-3, servers), draw.uniform(2.0, 12.0, servers)
    truth = LogTruth(departure, satisfied, routing, usd, seconds)
    # Arrivals are three times as frequent in the afternoon as at night.
    day = np.linspace(0, hours, 10_001)
    mass = np.cumsum(1 - 0.5 * np.cos(2 * np.pi * (day - 3) / 24))
    time = np.sort(np.interp(draw.uniform(mass[0], mass[-1], queries), mass, day)) * 3600
    topic, user = draw.integers(topics, size=queries), draw.integers(queries // 4 + 1, size=queries)
    words = [draw.choice(_WORDS[one], queries) for one in ("verbs", "adjectives")]
    places = draw.integers(6, size=queries)
    extra = draw.integers(1000, size=queries)
    drawn = zip(*words, np.array(list(TOPICS))[topic], places, extra, strict=True)
    text = [
        f"{verb} {name}: {TOPICS[name][place]}, {adjective}, case {number}"
        for verb, adjective, name, place, number in drawn
    ]
    parts: list[pl.DataFrame] = []
    here, now, before = np.arange(queries), time, np.full(queries, -1)
    number, prompts = 0, np.array(text, object)
    while len(here):
        own = topic[here]
        model = (routing[own].cumsum(axis=1) < draw.uniform(size=(len(here), 1))).sum(axis=1)
        model = np.minimum(model, servers - 1)
        tokens = 1 + draw.poisson(draw.gamma(2.0, 100.0, len(here)))
        took = seconds[model] * draw.gamma(4.0, 0.25, len(here))
        good = draw.uniform(size=len(here)) < satisfied[own, model]
        request = np.arange(number, number + len(here))
        number += len(here)
        liked = np.where(draw.uniform(size=len(here)) < rated, np.where(good, "up", "down"), "")
        parts.append(pl.DataFrame({
            "request_id": request, "created_at": BEGIN + now, "user": user[here],
            "prompt": prompts[here], "model": model, "completion_tokens": tokens,
            "cost": usd[model] * tokens / 200, "latency": took, "thumb": liked,
            "retry_of": before,
        }))  # fmt: skip
        # A retry, or a satisfied user who asks nearly the same once more.
        anyway = draw.uniform(size=len(here)) < mislabelled
        again = np.where(good, anyway, draw.uniform(size=len(here)) > abandon)
        prompts[here[again & (draw.uniform(size=len(here)) < 0.3)]] += ", please"
        now = (now + took + draw.exponential(60.0, len(here)))[again]
        before, here = request[again], here[again]
    frame = pl.concat(parts).filter(pl.col("created_at") <= BEGIN + hours * 3600).sort("created_at")
    named: Any = [f"llm-{'abcdefghijklmnopqrstuvwxyz'[n]}" for n in range(servers)]
    moment = pl.from_epoch((pl.col("created_at") * 1e6).cast(pl.Int64), "us")
    frame = frame.with_columns(
        pl.col("thumb").replace("", None),
        pl.col("cost").round_sig_figs(4),
        pl.col("latency").round(3),
        created_at=moment.dt.strftime("%Y-%m-%dT%H:%M:%S%.6fZ"),
        request_id="r" + pl.col("request_id").cast(pl.String),
        user="user-" + pl.col("user").cast(pl.String),
        model=pl.col("model").replace_strict(range(servers), named),
        retry_of=pl.when(pl.col("retry_of") >= 0).then("r" + pl.col("retry_of").cast(pl.String)),
    )
    return frame if marked else frame.drop("retry_of"), truth


if __name__ == "__main__":
    example, _ = generate_log()
    # The same bytes each time: without the time in the header.
    with EXAMPLE.open("wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as packed:
        packed.write(example.write_ndjson().encode())
