"""Fit made-up logs whose truth is known, and count how often the intervals hold the truth.

    python -m reproduction.log_validation 60 100

fits 60 logs, from number 100 on, and prints the table. Each log is a line of
`results/log_validation.jsonl`; the same command again fits only those that are missing. The truth
of a policy is its mean over other seeds in a scenario with the true departures and prices; arrivals
and gaps are those of the fit. Beside it is the naive analysis: each LLM's own share of answers that
are not retried, with its binomial interval.
"""

import functools
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import polars as pl
from scipy.special import logit

from cqbjax.core import backend
from cqbjax.core.scenario import with_dynamics
from cqbjax.dynamics import Orbit, ServiceChannels
from cqbjax.log_analysis import compare, fit, requests, retries, scenario
from cqbjax.log_analysis.summary import estimate_share
from cqbjax.policies import LlmRanking
from cqbjax.sources import PromptPool
from reproduction.planted_log import TOPICS, LogTruth, generate_log

STORED = Path(__file__).parents[1] / "results" / "log_validation.jsonl"
METRICS = ("departs", "queue", "usd")
SEEDS, TRUE_SEEDS, HORIZON, CHANNELS = 100, 200, 600, 2
QUERIES_A_SECOND = 0.04
LARGE, LARGE_QUERIES = 1000, 60_000  # about 100,000 rows


def draw_settings(number: int) -> dict[str, Any]:
    """Return the settings of a log by its number; those from `LARGE` on are large."""
    draw = np.random.default_rng([45, number])
    queries = int(draw.choice([700, 1500, 3000, 6000]))
    queries = LARGE_QUERIES if number >= LARGE else queries
    return {
        "seed": number, "queries": queries, "servers": int(draw.choice([2, 4, 8, 20])),
        "worth": float(draw.choice([0.0, 0.3, 0.7, 1.2])), "abandon": float(draw.uniform(0, 0.3)),
        "confounding": float(draw.choice([0.0, 1.0, 2.0])),
        "mislabelled": 0.05 * (number % 5 == 4), "hours": queries / QUERIES_A_SECOND / 3600,
    }  # fmt: skip


def validate_log(number: int) -> dict[str, Any]:
    """Fit a log, and compare its intervals with the truth."""
    settings = draw_settings(number)
    frame, truth = generate_log(**settings, marked=True)
    # The share of retries that follow a failure, as an audit would find it.
    weights = truth.routing
    failing = (weights * (1 - truth.departure)).sum()
    repeated = (weights * truth.satisfied).sum() * settings["mislabelled"]
    precision = float(failing / (failing + repeated))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.jsonl"
        frame.write_ndjson(path)
        log = requests.read_log(path)
        found = retries.find_retries(log)
        fitted = fit.fit_log(log, found, precision, channels=CHANNELS)
        files = scenario.write_scenario(
            "planted", fitted.arrays, fitted.timing, fitted.about, Path(folder)
        )
        pool = scenario.make_posterior_pool(str(files[3]))
    # The columns of the truth in the order of the log's LLMs.
    order = [ord(name[-1]) - ord("a") for name in log.models]
    truth = LogTruth(*(part[..., order] for part in truth))
    delays = np.maximum(1, np.ceil(fitted.timing.gaps / fitted.timing.round_seconds))
    dynamics = [Orbit(delays=delays)], [ServiceChannels(count=CHANNELS)]
    run = functools.partial(
        compare.compare, about=fitted.about, arrival_rate=fitted.timing.arrival_rate, service=1.0,
        learning={"greedy": LlmRanking(index="greedy")}, horizon=HORIZON,
    )  # fmt: skip
    shown = run(fitted.arrays, source=with_dynamics(pool, *dynamics), seeds=SEEDS)
    arrays, true_pool = _make_truth(frame, truth, log, found, fitted.arrays, pool.source)
    true = run(arrays, source=with_dynamics(true_pool, *dynamics), seeds=TRUE_SEEDS).outcomes
    table, queue = compare.tabulate(shown), true["queue"].mean(axis=1)
    best = queue[int(table["queue"].to_numpy().argmin())]
    # The naive analysis: an LLM's share of answers without a retry, with its binomial interval.
    counts = np.bincount(log.frame["model"].to_numpy())
    shares = [
        estimate_share((1 - rate) * count, count)
        for rate, count in zip(fitted.about["retried"].values(), counts.tolist(), strict=True)
    ]
    departure = truth.departure.mean(axis=0)
    row: dict[str, Any] = {
        **settings, "rows": log.frame.height, "precision": precision,
        "contexts": fitted.chosen.name, "policies": shown.labels,
        "unsupported": table["unsupported"].to_list(), "text": compare.recommend(table, shown),
        "loss": float(best - queue.min()) / max(float(np.ptp(queue)), 1e-9),
        "naive_held": [bool(low <= value <= high)
                       for (_, low, high), value in zip(shares, departure, strict=True)],
    }  # fmt: skip
    for name in METRICS:
        value, mean = true[name].mean(axis=1), table[name].to_numpy()
        own = 1.96 * true[name].std(axis=1) / TRUE_SEEDS**0.5
        bound = np.where(value < mean, table[f"{name}_low"], table[f"{name}_high"])
        row[f"{name}_true"] = value.tolist()
        row[f"{name}_held"] = (abs(mean - value) <= np.hypot(bound - mean, own)).tolist()
        row[f"{name}_error"] = (mean - value).tolist()
    return row


def _make_truth(
    frame: pl.DataFrame, truth: LogTruth, log: requests.RequestLog, found: retries.Retries,
    arrays: scenario.ScenarioArrays, pool: PromptPool,
) -> tuple[scenario.ScenarioArrays, PromptPool]:  # fmt: skip
    """Return the arrays and prompts of a scenario with the true departures, prices and routing."""
    numbers = {word: n for n, words in enumerate(TOPICS.values()) for word in words}
    topic = [numbers[word] for word in frame["prompt"].str.extract(r": (.*?), ")]
    by_text = dict(zip(log.frame["text"], topic, strict=True))
    first = log.frame["text"].to_numpy()[found.before < 0]
    sample = first[np.random.default_rng(0).permutation(len(first))[: scenario.MAX_PROMPTS]]
    topics = np.array([by_text[one] for one in sample])
    usd = np.tile(truth.usd * 201 / 200, (len(sample), 1))
    return arrays._replace(dollars=usd, routing=truth.routing[topics]), PromptPool(
        contexts=pool.contexts, utilities=jnp.asarray(logit(truth.departure[topics]), float),
        pool_size=pool.pool_size, dollars=jnp.asarray(usd, float), scores=pool.scores,
    )  # fmt: skip


def summarize(rows: Sequence[dict[str, Any]]) -> pl.DataFrame:
    """Return coverage, errors and decisions by kind of log.

    Coverage counts only policies that the log compares.
    """
    logs = pl.DataFrame(rows, infer_schema_length=None).with_columns(
        named=pl.col("text").str.starts_with("Recommended"), good=pl.col("loss") <= 0.1
    )
    each = logs.explode("policies", "unsupported", *(f"{name}_held" for name in METRICS))
    each = each.with_columns(compared=pl.col("unsupported") <= compare.UNSUPPORTED)
    router, every = pl.col("policies") == "fitted router", pl.lit(True)
    policies = {"only the fitted router": router, "the other policies": ~router}
    servers, size = pl.col("servers"), pl.col("rows")
    kinds = {
        "all": every, **dict.fromkeys(policies, every),
        "retries as they are": pl.col("mislabelled") == 0,
        "mislabelled retries": pl.col("mislabelled") > 0, "2 LLMs": servers == 2,
        "4 or 8 LLMs": servers.is_in([4, 8]), "20 LLMs": servers == 20,
        "up to 2,000 rows": size <= 2000, "2,001 to 6,000 rows": size.is_between(2001, 6000),
        "6,001 to 20,000 rows": size.is_between(6001, 20_000), "more rows": size > 20_000,
    }  # fmt: skip
    table = []
    for kind, condition in kinds.items():
        some, own = logs.filter(condition), each.filter(condition, policies.get(kind, every))
        if some.is_empty():
            continue
        compared = own.filter("compared")
        line = {
            "logs": kind, "number": len(some), "compared": own["compared"].mean(),
            **{f"{name} held": compared[f"{name}_held"].mean() for name in METRICS},
            "naive held": some["naive_held"].explode().mean(), "recommended": some["named"].mean(),
            "within 10%": some.filter("named")["good"].mean(),
            "within 10% or open": (some["good"] | ~some["named"]).mean(),
        }  # fmt: skip
        table.append({k: round(x, 3) if isinstance(x, float) else x for k, x in line.items()})
    return pl.DataFrame(table)


def main() -> None:
    """Fit the logs that are missing, and print the table."""
    backend.configure()
    rows = [json.loads(line) for line in STORED.read_text().splitlines()] if STORED.exists() else []
    known = {row["seed"] for row in rows}
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    for number in range(first, first + int(sys.argv[1])):
        if number not in known:
            rows.append(validate_log(number))
            with STORED.open("a") as file:
                file.write(json.dumps(rows[-1]) + "\n")
    with pl.Config(tbl_cols=-1, tbl_width_chars=160):
        print(summarize(rows))


if __name__ == "__main__":
    main()
