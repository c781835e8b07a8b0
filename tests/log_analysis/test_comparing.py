"""Policies in a fitted scenario: what data leave open, parity with the log, and what is said."""

import numpy as np
import pytest
import xarray as xr

from cqbjax import policies
from cqbjax.log_analysis import compare, fit, requests, retries, scenario
from reproduction.planted_log import generate_log

ABOUT = {
    "models": ["a", "b"], "attempts_a_query": 1.5, "retried": {"a": 0.3, "b": 0.4}, "rows": 1000,
    "queries": 700, "priced": True, "round_seconds": 10.0, "arrival_rate": 0.5, "channels": 2,
    "stay": 12.5, "latency": 4.0, "pause": 13.0, "hour": [3, 0.4, 0.35, 0.8],
}  # fmt: skip


def make_comparison(queue, expected=None, numbers=None, unsupported=0.0, seeds=400):
    """Return a comparison with these mean queues, each with an error of .3 between seeds."""
    draw = np.random.default_rng(0)
    size = len(queue)
    expected = np.full((size, 200), 0.6) if expected is None else expected
    numbers = draw.integers(200, size=seeds) if numbers is None else numbers
    noise = 0.3 * draw.standard_normal((size, seeds))
    values = np.asarray(queue)[:, None] * (0.6 / expected[:, numbers]) + noise
    plain = np.full((size, seeds), 1.5) + 0.1 * draw.standard_normal((size, seeds))
    lone, wait = np.full((size, seeds), unsupported), 12 + plain
    outcomes = dict.fromkeys(("attempts", "departs", "usd", "low", "high", "breaks"), plain) | {
        "queue": values,
        "wait": wait,
        "unsupported": lone,
    }
    rates = np.array([0.3, 0.4]) + 0.02 * draw.standard_normal((seeds, 2))
    labels = [compare.TODAY, *"xyz"][:size]
    errors = np.array([0.01, 0.02])
    none = np.zeros((size, size))
    return compare.Comparison(
        labels, outcomes, expected, numbers, rates, ABOUT, errors, none, arrivals=300.0, service=0.5
    )  # fmt: skip


def test_outcomes_are_means_over_attempts_or_over_queries_that_depart():
    axes, table = ("policy", "seed", "ended", "prompt", "server"), np.zeros((2, 2))
    tried, left = np.array([[4.0, 0], [2, 2]]), np.array([[1.0, 0], [2, 1]])
    system = (("policy", "seed", "round"), np.ones((1, 1, 4)))
    data = xr.Dataset({
        "by_prompt": (axes, np.stack([tried, left])[None, None]),
        "time_mean": (axes[:2], [[3.0]]), "queue_length": system, "away": system,
        "in_service": system,
    })  # fmt: skip
    arrays = scenario.ScenarioArrays(
        table, table, table, dollars=table + 1, seconds=table, supported=table + [1, 0],
        low=np.array([[0.5, 0.1], [0.2, 0.9]]), high=np.array([[0.8, 0.1], [0.6, 1.0]]),
        routing=table,
    )  # fmt: skip
    outcomes = compare._read_outcomes(data, arrays, ABOUT, 2.0)
    assert {name: values.item() for name, values in outcomes.items()} == pytest.approx({
        "queue": 3, "wait": 30, "attempts": 8 / 4, "departs": 4 / 8, "usd": 8 / 4,
        "low": (0.5 + 2 * 0.2 + 0.9) / 4, "high": (0.8 + 2 * 0.6 + 1.0) / 4,
        "unsupported": 2 / 8, "breaks": 2 / (8 * 2 * 10 / 4),
    })  # fmt: skip


def test_variance_of_the_data_is_separated_from_variance_of_seeds():
    draw = np.random.default_rng(1)
    expected = 0.6 + 0.03 * draw.standard_normal((2, 200))
    shown = make_comparison([2.0, 3.0], expected)
    draws, noise = compare.estimate_draws(shown.outcomes["queue"], shown)
    # The queue is 2 * .6 / z: its standard deviation is 2 * .03 / .6.
    np.testing.assert_allclose(draws.std(axis=1), [0.1, 0.15], rtol=0.2)
    np.testing.assert_allclose(draws.mean(axis=1), shown.outcomes["queue"].mean(axis=1))
    np.testing.assert_allclose(np.sqrt(np.diag(noise)), 0.3 / 20, rtol=0.2)
    certain = make_comparison([2.0, 3.0])
    assert compare.estimate_draws(certain.outcomes["queue"], certain)[0].std(axis=1).max() < 1e-9


def test_a_queue_near_its_limit_has_a_longer_upper_side():
    draw = np.random.default_rng(1)
    expected = 0.6 + 0.03 * draw.standard_normal((2, 200))
    shown = make_comparison([2.0, 3.0], expected)
    load = 0.9 * 0.6 / expected[:, shown.numbers]
    n = shown.arrivals
    queue = n / 2 * (np.sqrt((1 - load) ** 2 + 4 * load / n) - (1 - load))
    limit = np.full_like(queue, ABOUT["arrival_rate"] / ABOUT["round_seconds"] / 0.9)
    near = shown._replace(outcomes=shown.outcomes | {"queue": queue, "breaks": limit})
    row = compare.tabulate(near).row(0, named=True)
    assert row["queue_high"] - row["queue"] > 1.3 * (row["queue"] - row["queue_low"])
    draws, _ = compare.estimate_draws(queue, near)
    np.testing.assert_allclose(draws[:, shown.numbers], queue, rtol=0.05)


def test_parity_fails_where_the_scenario_deviates_from_the_log():
    shown = make_comparison([2.0, 3.0])
    assert all(chance > 0.5 for *_, chance in compare.check_parity(shown))
    wrong = shown._replace(about=ABOUT | {"attempts_a_query": 2.5})
    lines = list(compare.describe_comparison(wrong, compare.tabulate(wrong)))
    assert lines[0].startswith("PARITY FAILS: attempts a query is 2.500 in the log and 1.5")


@pytest.mark.parametrize(
    ("key", "value", "what"),
    [
        ("stay", 20.0, "time in the system (s)"),
        ("pause", 60.0, "time from a request to its retry"),
        ("hour", [3, 0.9, 0.35, 1e-4], "retry rate from 3 to 4 o'clock is 0.900 in the log"),
    ],
)  # fmt: skip
def test_parity_covers_service_times_and_hours(key, value, what):
    shown = make_comparison([2.0, 3.0])
    wrong = shown._replace(about=ABOUT | {key: value})
    lines = list(compare.describe_comparison(wrong, compare.tabulate(wrong)))
    assert lines[0].startswith("PARITY FAILS") and what in lines[0]
    assert lines[1].startswith("Recommended")


@pytest.mark.parametrize(
    ("queue", "unsupported", "start"),
    [
        ([2.0, 1.0, 3.0], 0.0, "Recommended: x, best with probability 1.00"),
        ([2.0, 2.01, 2.02], 0.0, "Not distinguished with seeds=400: x or today"),
        ([2.0, 1.0, 3.0], 0.3, "This log cannot tell: x has the shortest queue, but 30%"),
    ],
)
def test_best_policy_is_recommended_if_the_log_determines_it(queue, unsupported, start):
    shown = make_comparison(queue, unsupported=unsupported)
    assert compare.recommend(compare.tabulate(shown), shown).startswith(start)


def test_recommendation_states_the_sufficient_log_size():
    expected = 0.6 + 0.1 * np.random.default_rng(1).standard_normal((3, 200))
    shown = make_comparison([2.0, 2.05, 2.3], np.clip(expected, 0.3, 0.9))
    text = compare.recommend(compare.tabulate(shown), shown)
    assert text.startswith("This log cannot tell: ")
    assert "requests would tell, most of all of b, whose departures are the least known" in text


def test_single_llm_logs_compare_schedules():
    arrays = scenario.ScenarioArrays(*[np.ones((3, 1))] * 9)
    labels = list(compare.make_candidates(arrays, ["m"]))
    assert labels == [compare.TODAY, "newest", "least_served", "random"]


@pytest.mark.slow
def test_fitted_logging_policy_reproduces_the_log(tmp_path):
    generate_log(7, queries=2000, worth=2.0, marked=True)[0].write_ndjson(tmp_path / "log.jsonl")
    log = requests.read_log(tmp_path / "log.jsonl")
    fitted = fit.fit_log(log, retries.find_retries(log))
    files = scenario.write_scenario("ours", fitted.arrays, fitted.timing, fitted.about, tmp_path)
    source = cqbjax_scenario(files, fitted.timing.gaps / fitted.timing.round_seconds)
    shown = compare.compare(
        fitted.arrays, fitted.about, source, 0.3, 1.0,
        {"greedy": policies.LlmRanking(index="greedy")}, seeds=20, horizon=1000,
    )  # fmt: skip
    table = compare.tabulate(shown)
    assert all(chance > 0.05 for *_, chance in compare.check_parity(shown))
    assert abs(table["attempts"][0] - fitted.about["attempts_a_query"]) < 0.1
    assert table.sort("queue")["policy"][0] == "fitted router"
    assert "fitted router" in next(compare.describe_comparison(shown, table))
    assert (table["unsupported"] < 0.01).all() and table["usd"].min() > 0
    compare.draw_comparison(table, shown.about, table["policy"].to_list()).savefig(
        tmp_path / "page.png"
    )


def cqbjax_scenario(files, delays):
    from cqbjax.core.scenario import with_dynamics
    from cqbjax.dynamics import Orbit

    source = scenario.make_posterior_pool(str(files[3]))
    return with_dynamics(source, [Orbit(delays=np.maximum(1, np.ceil(delays)))], [])
