"""A fit gives back what a made-up log was made of, and says what the log leaves open."""

import dataclasses
import os
import subprocess
import sys

import jax
import numpy as np
import polars as pl
import pytest
import yaml
from composing import REPOSITORY
from scipy.special import expit

from cqbjax import policies, sweep
from cqbjax.core import rng
from cqbjax.datasets.times import make_service_times
from cqbjax.log_analysis import departures, fit, requests, retries, scenario
from cqbjax.logs.shards import LogError
from reproduction.planted_log import TOPICS, generate_log


def read(tmp_path, frame, **keys):
    path = tmp_path / "log.jsonl"
    frame.write_ndjson(path)
    log = requests.read_log(path, **keys)
    return log, retries.find_retries(log)


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    frame, truth = generate_log(3, queries=3000, worth=1.2, confounding=1.5, marked=True)
    log, found = read(tmp_path_factory.mktemp("planted"), frame)
    return frame, truth, fit.fit_log(log, found)


def by_name(truth, models):
    """Return the columns of a truth in the order of a log's models."""
    return truth[:, [ord(name[-1]) - ord("a") for name in models]]


def test_departure_estimates_recover_the_truth_under_confounded_routing(planted):
    frame, truth, fitted = planted
    departure = by_name(truth.departure, fitted.about["models"]).mean(axis=0)
    table = fitted.overlap.table
    # Topics are equally frequent among queries, not among attempts: the harder ones have more.
    x = fitted.arrays.contexts
    drawn = expit(np.einsum("pe,dne->dpn", x, fitted.arrays.draws)).mean(axis=1)
    error = drawn.std(axis=0)
    assert fitted.chosen.name == "words" and (error < 0.05).all()
    assert (np.abs(drawn.mean(axis=0) - departure) < 3 * error + 0.01).all()
    assert not table["disagree"].any() and (table["effective"] > 100).all()
    naive = 1 - np.array([fitted.about["retried"][name] for name in fitted.about["models"]])
    assert np.abs(naive - departure).max() > 2 * np.abs(drawn.mean(axis=0) - departure).max()


def test_uninformative_contexts_give_no_gain(tmp_path):
    log, found = read(tmp_path, generate_log(4, queries=1500, worth=0.0, marked=True)[0])
    fitted = fit.fit_log(log, found)
    assert fitted.chosen.gains[fitted.chosen.name][0] < 0.002
    chances = expit(fitted.arrays.contexts @ fitted.arrays.mean.T)
    assert chances.max(axis=1).mean() - chances.mean(axis=0).max() < 0.03


def test_posterior_intervals_cover_the_truth():
    """Of fits to 60 logs with one LLM, the 95% intervals hold the truth in 50 to 60."""
    covered = 0
    for seed in range(60):
        draw = np.random.default_rng(seed)
        users = np.repeat(np.arange(100), 5)
        # Users differ: an interval as if attempts were independent would be too narrow.
        chance = expit(0.5 + 1.5 * draw.standard_normal(100))[users]
        attempts = departures.Attempts(
            np.zeros(500, int), np.zeros(500, int), (draw.uniform(size=500) < chance) + 0.0, users
        )
        fitted = departures.fit_departures(attempts, np.ones((1, 1)), 1, (1.0, 1.0))
        truth = expit(0.5 + 1.5 * np.random.default_rng(0).standard_normal(100_000)).mean()
        logit = np.log(truth / (1 - truth))
        covered += abs(fitted.mean[0, 0] - logit) < 1.96 * fitted.root[0, 0]
    assert 50 <= covered <= 60 and fitted.design_effect > 1.5


def test_dependence_between_attempts_of_a_query_is_detected():
    draw = np.random.default_rng(0)
    first = draw.uniform(size=1000) < 0.5
    query = np.concatenate([np.arange(1000), np.flatnonzero(~first)])
    number = np.concatenate([np.ones(1000), np.full((~first).sum(), 2)])
    same = np.concatenate([first, np.zeros((~first).sum(), bool)]).astype(float)
    attempts = departures.Attempts(query, np.zeros(len(query), int), same, query)
    chance = np.full(len(query), 0.5)
    level = departures.find_outcome_level(query, number, attempts, chance)
    assert level.level == "query" and level.ratio == 0
    fresh = attempts._replace(departs=(draw.uniform(size=len(query)) < 0.5).astype(float))
    assert departures.find_outcome_level(query, number, fresh, chance).level == "attempt"


def test_departures_are_corrected_to_the_doubly_robust_estimate():
    """As far as biases vary more than their errors."""
    table = pl.DataFrame({"bias": [0.1, -0.1], "bias_error": [0.02, 0.02]})
    bias, error = departures.estimate_bias(table)
    share = (0.1**2 - 0.02**2) / 0.1**2
    np.testing.assert_allclose(bias, [0.1 * share, -0.1 * share])
    np.testing.assert_allclose(error, 0.02 * share**0.5)
    noise = pl.DataFrame({"bias": [0.01, -0.01], "bias_error": [0.02, 0.02]})
    assert not np.any(departures.estimate_bias(noise))


def test_a_retry_is_an_attempt_at_the_prompt_that_began_its_query(tmp_path):
    log, found = read(tmp_path, generate_log(1, queries=60, marked=True)[0])
    rows = np.arange(len(found.query))
    reworded = dataclasses.replace(log, frame=log.frame.with_columns(text=pl.Series(rows)))
    assert (found.query < rows).any()
    np.testing.assert_array_equal(fit._collect_attempts(reworded, found).text, found.query)


def test_identical_requests_of_a_user_count_once():
    draw, copies = np.random.default_rng(0), 4
    model, departs = (np.repeat(draw.integers(2, size=60), copies) for _ in range(2))
    users, text = np.repeat(np.arange(60), copies), np.zeros(60 * copies, int)
    tables = [
        departures.check_overlap(
            departures.Attempts(text, model, departs.astype(float), group), np.ones((2, 1)),
            np.full((2, 2), 0.5), np.zeros(2), np.full(60 * copies, 0.5), ("a", "b"),
        ).table
        for group in (users, np.arange(60 * copies))
    ]  # fmt: skip
    for name in ("DR_error", "bias_error"):
        np.testing.assert_allclose(tables[0][name], copies**0.5 * tables[1][name].to_numpy())
    assert tables[0]["DR"].equals(tables[1]["DR"])


def test_prompts_without_overlap_are_not_compared(tmp_path):
    frame, _ = generate_log(5, queries=1500, worth=1.0, marked=True)
    topic = pl.col("prompt").str.contains(f": ({'|'.join(TOPICS['python'])})")
    log, found = read(tmp_path, frame.filter(~(topic & (pl.col("model") == "llm-a"))))
    lines = "\n".join(fit.report(fit.fit_log(log, found, contexts="words")))
    assert "NOT COMPARED: llm-a with" in lines


def test_only_a_share_of_retries_are_failures():
    """Of 1,000 requests after which the query departs, m look like retries."""
    fails, wrong = np.array([0.1, 0.5]), 0.07
    looks = fails + wrong * (1 - fails)
    precision = fails.mean() / looks.mean()
    log_odds = np.log((1 - looks) / looks)
    corrected = expit(np.asarray(scenario.correct_log_odds(log_odds, precision, looks.mean())))
    np.testing.assert_allclose(corrected, 1 - fails, rtol=1e-5)


def test_costs_and_latencies_are_adjusted_for_prompt_length(tmp_path):
    draw, size = np.random.default_rng(0), 2000
    length = draw.integers(5, 200, size)
    model = np.where(draw.uniform(size=size) < length / 200, "long", "short")
    rows = [
        {"timestamp": 1.7e9 + 60 * i, "user": f"u{i}", "prompt": "word " * n, "model": m,
         "cost": 1e-5 * n * (1 + (m == "short")), "latency": 0.2 * n * (1 + (m == "long"))}
        for i, (n, m) in enumerate(zip(length, model, strict=True))
    ]  # fmt: skip
    log, found = read(tmp_path, pl.DataFrame(rows))
    fitted = fit.fit_log(log, found)
    usd = dict(zip(log.models, fitted.arrays.dollars.mean(axis=0), strict=True))
    mean = 1e-5 * length.mean()
    assert abs(usd["long"] / mean - 1) < 0.1 and abs(usd["short"] / mean / 2 - 1) < 0.1
    # Service times follow the tokens of each prompt, in the scenario too.
    seconds, place = fitted.arrays.seconds, log.models.index("long")
    assert abs(seconds[:, place].mean() / (0.4 * length.mean()) - 1) < 0.1
    assert np.corrcoef(fitted.arrays.dollars[:, place], seconds[:, place])[0, 1] > 0.99
    scenario.write_scenario("ours", fitted.arrays, fitted.timing, fitted.about, tmp_path)
    config = yaml.safe_load((tmp_path / "conf" / "scenario" / "ours.yaml").read_text())
    keys = config["service"]["rounds"]
    service = make_service_times(**(keys | {"latencies": tmp_path / keys["latencies"]}))
    expected = np.maximum(1.0, seconds / fitted.timing.round_seconds)
    np.testing.assert_allclose(service.rounds, expected)
    assert service.names.servers == list(log.models) and expected.max() > 1.2


def test_hours_with_few_attempts_do_not_fail_parity(tmp_path):
    rows = [
        {"timestamp": 1.7e9 + 3600 * i, "user": f"u{i}", "prompt": f"prompt {i}", "model": "m"}
        for i in range(240)
    ]
    log, found = read(tmp_path, pl.DataFrame(rows))
    about = fit.fit_log(log, found).about
    assert "hour" not in about and about["stay"] == 0


def test_satisfaction_weights_ratings_by_inverse_rating_probability(tmp_path):
    """Users who depart rate five times as often after one prompt, where they are less satisfied."""
    draw, size = np.random.default_rng(0), 4000
    hard = draw.uniform(size=size) < 0.5
    good = draw.uniform(size=size) < np.where(hard, 0.4, 0.9)
    rated = draw.uniform(size=size) < np.where(hard, 0.5, 0.1)
    rows = [
        {"timestamp": 1.7e9 + 60 * i, "user": f"u{i}", "model": "m",
         "prompt": f"{'prove the theorem' if hard[i] else 'write a letter'} {i}",
         "feedback": ("up" if good[i] else "down") if rated[i] else None}
        for i in range(size)
    ]  # fmt: skip
    log, found = read(tmp_path, pl.DataFrame(rows, infer_schema_length=None))
    arrays = fit.fit_log(log, found, contexts="words").arrays
    assert arrays.low.mean() < 0.65 < arrays.high.mean() and arrays.low.mean() > 0.55


def test_censored_return_gaps_are_reweighted(tmp_path):
    draw, size = np.random.default_rng(0), 10_000
    asked = np.sort(draw.uniform(0, 5000, size))
    gaps = draw.uniform(0, 1000, size)
    rows = [
        {"timestamp": 1.7e9 + time, "user": f"u{i}", "prompt": f"prompt number {i}", "model": "m",
         "request_id": f"{i}.{k}", "retry_of": f"{i}.0" if k else None}
        for i in range(size) for k, time in enumerate((asked[i], asked[i] + gaps[i]))
        if time <= 5000
    ]  # fmt: skip
    log, found = read(tmp_path, pl.DataFrame(rows, infer_schema_length=None))
    timing, _ = scenario.measure_timing(log, found, None, None, False)
    naive = found.gaps.mean()
    gaps = timing.gaps + 0.5 * timing.round_seconds  # which are corrected for whole rounds
    assert naive < 488 and abs(gaps.mean() - 500) < 9


def test_a_profile_has_the_hours_of_the_day_of_the_log(tmp_path):
    draw, size, day = np.random.default_rng(0), 800, 86_400
    asked = draw.integers(0, 5, size) * day + draw.uniform(9, 12, size) * 3600
    rows = [
        {"timestamp": 19_700 * day + time, "user": f"u{i}", "prompt": f"number {i}", "model": "m"}
        for i, time in enumerate(np.sort(asked))
    ]
    log, found = read(tmp_path, pl.DataFrame(rows))
    arrivals = scenario.measure_timing(log, found, None, None, True)[0].arrivals
    # The first arrival is between nine and ten.
    assert ((arrivals + 3600) % day < 4 * 3600).all() and arrivals[-1] > 4 * day
    assert abs(len(arrivals) - size) < 5 * size**0.5


def test_short_logs_are_refused(tmp_path):
    frame, _ = generate_log(6, queries=300, hours=0.1, marked=True)
    log, found = read(tmp_path, frame)
    with pytest.raises(LogError, match="the log is too short: .* queries in"):
        scenario.measure_timing(log, found, None, None, False)
    few = dataclasses.replace(log, frame=log.frame.head(20))
    with pytest.raises(LogError, match="attempts have a known outcome, and a fit needs 100"):
        fit.fit_log(few, retries.find_retries(few))


@pytest.mark.slow
def test_a_fitted_scenario_is_an_ordinary_source(planted, tmp_path):
    _, _, fitted = planted
    files = scenario.write_scenario(
        "ours", fitted.arrays, fitted.timing, fitted.about, tmp_path
    )  # fmt: skip
    source = scenario.make_posterior_pool(str(files[3]))
    problem = source.problem(1, 10)
    drawn = [
        jax.jit(source.draw_workload, static_argnums=2)(rng.run_key(seed), 0.5, problem).utilities
        for seed in range(2)
    ]
    assert (
        np.abs(np.asarray(drawn[0]).mean(axis=0) - np.asarray(drawn[1]).mean(axis=0)).max() > 1e-3
    )
    chosen = {"random": policies.RandomRouting()}
    data = sweep(chosen, source, arrival_rate=[0.5], horizon=400, num_seeds=8, record=["attempts"])
    uniform = (1 / expit(fitted.arrays.contexts @ fitted.arrays.mean.T).mean(axis=1)).mean()
    assert abs(float(data.attempts.isel(round=-1).sel(policy="random").mean()) - uniform) < 0.2
    with pytest.raises(LogError, match="is no scenario of cqbjax log fit"):
        scenario.make_posterior_pool(str(files[0]))


def test_posterior_draws_match_the_departure_rate_of_the_log():
    draw = np.random.default_rng(3)
    x = np.column_stack([np.ones(300), draw.normal(size=(300, 20))])
    departs = (draw.uniform(size=300) < 0.9).astype(float)
    every = departures.Attempts(np.arange(300), np.zeros(300, int), departs, np.arange(300))
    fitted = departures.fit_departures(every, x, 1, (1.0, 1.0))
    drawn = expit(np.einsum("te,dne->dt", x, fitted.draw(draw, 2000))).mean()
    # At the mode of the posterior, they would depart 0.017 too rarely.
    assert abs(drawn - departs.mean()) < 0.006


@pytest.mark.slow
def test_a_scenario_runs_in_the_folder_where_it_was_fitted(tmp_path):
    def call(*words):
        done = subprocess.run(
            [sys.executable, "-m", "cqbjax", *words], cwd=tmp_path, text=True, timeout=600,
            capture_output=True, env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert "next: cqbjax log compare ours" in call("log", "fit", "example", "channels=1")
    config = call("run", "scenario=ours", "policy=[random]", "--cfg", "job")
    assert "make_posterior_pool" in config and "delays: conf/scenario/ours/gaps.parquet" in config
    assert "ours (version 1): The log ours" in call("arena", "tasks")
    entered = call("arena", "policy=greedy", "tasks=ours", "seeds=2", "rounds=0.03")
    assert "greedy, task by task" in entered and "\nours " in entered
    page = call("log", "compare", "ours", "seeds=4", "horizon=60", "policies=[greedy]")
    assert "only llm-" in page and "Greedy by LLM" in page
    written = {path.name for path in (tmp_path / "results" / "logs").iterdir()}
    assert written == {"ours.md", "ours.csv", "ours.png"}
