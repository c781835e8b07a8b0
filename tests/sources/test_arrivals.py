"""Arrivals in bursts and from traces: their rate and order, and the default as it was."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest
from composing import compose_config
from tiers import cases

import cqbjax
from cqbjax.core import rng, simulate
from cqbjax.core.pytree import as_arrays
from cqbjax.datasets.table import TableError
from cqbjax.datasets.times import read_times
from cqbjax.experiments.grid import GridPoint, PreparedPoint
from cqbjax.experiments.study import build_source, describe_differences
from cqbjax.policies import RandomRouting
from cqbjax.sources import ArrivalWrapper, BurstyArrivals, Synthetic, convert_trace
from reproduction.paper import printed

SOURCE = Synthetic(num_servers=2, dim=2, slackness=-1.0)
T = 4000
TRACES = {"azure_llm_2023_conv": 19_366, "mooncake_conversation": 12_031}


@functools.partial(jax.jit, static_argnames="horizon")
def draw_for(process, rate, seeds, horizon):
    return jax.vmap(lambda seed: process.draw_arrivals(rng.run_key(seed), rate, horizon))(seeds)


def arrivals(process, rate, seeds, horizon=T):
    """Return A(1), ..., A(T) of some seeds: [S, T], or of one: [T]."""
    drawn = draw_for(
        as_arrays(process), jnp.asarray(rate), jnp.atleast_1d(jnp.asarray(seeds)), horizon
    )
    return np.asarray(drawn)[0 if np.ndim(seeds) == 0 else slice(None)]


def instance(source, rate=0.6, horizon=50):
    drawn = simulate.draw_instance(
        rng.run_key(3), source, jnp.asarray(rate), source.problem(1, horizon)
    )
    return drawn._replace(key=None)


def build_at(config):
    """Return SOURCE as a point of a study draws it."""
    return build_source(PreparedPoint(GridPoint("K=1", config, {}, {}), SOURCE, {}))


@pytest.mark.slow
def test_arrivals_are_bernoulli_by_default():
    rounds = jnp.arange(1, 51)
    expected = rng.round_uniforms(rng.run_key(3), rounds, rng.Stream.ARRIVAL) < 0.6
    np.testing.assert_array_equal(instance(SOURCE).arrivals, expected)
    config = compose_config("experiment=synthetic")
    assert config.arrivals == "bernoulli" and build_at(config) is SOURCE


@pytest.mark.slow
def test_zero_burst_equals_bernoulli_arrivals_and_bursts_change_only_arrivals():
    calm = ArrivalWrapper(source=SOURCE, process=BurstyArrivals(burst=0.0))
    jax.tree.map(np.testing.assert_array_equal, instance(SOURCE), instance(calm))
    wild = instance(ArrivalWrapper(source=SOURCE, process=BurstyArrivals(burst=0.5)))
    assert (wild.arrivals != instance(SOURCE).arrivals).any()
    jax.tree.map(np.testing.assert_array_equal, instance(SOURCE).workload, wild.workload)
    np.testing.assert_array_equal(instance(SOURCE).choice_uniforms, wild.choice_uniforms)


@pytest.mark.slow
def test_a_longer_horizon_begins_with_the_same_arrivals():
    trace = convert_trace(np.cumsum(np.random.default_rng(0).exponential(size=900)))
    for process in (BurstyArrivals(), trace):
        short, long = arrivals(process, 0.5, 2, 300), arrivals(process, 0.5, 2, 500)
        np.testing.assert_array_equal(short, long[:300])


def test_single_arrival_processes_keep_the_problem_shapes():
    wrapped = ArrivalWrapper(source=SOURCE, process=BurstyArrivals())
    assert wrapped.problem(1, 100) == SOURCE.problem(1, 100)


def test_bursty_arrivals_keep_the_rate_and_autocorrelation():
    process = BurstyArrivals(burst=0.6, burst_rounds=40)
    drawn = arrivals(process, 0.5, np.arange(40)).astype(float)
    means = drawn.mean(axis=1)
    assert abs(means.mean() - 0.5) < 5 * means.std(ddof=1) / np.sqrt(40)
    # A lag of 10 rounds: the states agree with correlation (1 - 2 / 40)^10, and arrivals by
    # (burst lambda)^2 times that.
    here = ((drawn[:, :-10] - 0.5) * (drawn[:, 10:] - 0.5)).mean(axis=1)
    expected = (0.6 * 0.5) ** 2 * (1 - 2 / 40) ** 10
    assert abs(here.mean() - expected) < 5 * here.std(ddof=1) / np.sqrt(40)
    assert expected > 10 * here.std(ddof=1) / np.sqrt(40), "no correlation would be seen"


def test_bursty_arrivals_match_a_plain_loop():
    """The state changes after a round; the first one is busy as often as not."""
    process, rate, horizon = BurstyArrivals(burst=0.8, burst_rounds=3), 0.4, 60
    drawn = arrivals(process, rate, np.arange(16), horizon)

    @jax.jit
    @jax.vmap
    def uniforms(seed):
        key, rounds = rng.run_key(seed), jnp.arange(1, horizon + 1)
        own = rng.round_uniforms(key, rounds, rng.Stream.BURST)
        come = rng.round_uniforms(key, rounds, rng.Stream.ARRIVAL)
        return rng.uniform(rng.round_key(key, 0), rng.Stream.BURST), own, come

    begun = []
    for first, own, come, made in zip(*uniforms(jnp.arange(16)), drawn, strict=True):
        busy, expected = bool(first < 0.5), []
        begun.append(busy)
        for change, arrival in zip(np.asarray(own), np.asarray(come), strict=True):
            expected.append(arrival < rate * (1.8 if busy else 0.2))
            busy ^= bool(change < 1 / 3)
        np.testing.assert_array_equal(made, expected)
    assert len(set(begun)) == 2


def test_trace_arrivals_match_a_plain_loop():
    times = np.cumsum(np.random.default_rng(1).exponential(size=70) ** 3)
    process, rate = convert_trace(times), 0.7
    unit = np.asarray(process.times, np.float64)
    drawn = arrivals(process, rate, 5, 200)
    start = int(rng.uniform(rng.round_key(rng.run_key(5), 0), rng.Stream.BURST) * 70)
    expected, last = np.zeros(200, bool), -1
    for k in range(200):
        laps, place = divmod(start + k, 70)
        last = max(int((laps * 70 + unit[place] - unit[start]) / rate), last + 1)
        if last < 200:
            expected[last] = True
    np.testing.assert_array_equal(drawn, expected)


@pytest.mark.parametrize("name", cases(TRACES, ["mooncake_conversation"]))
def test_real_traces_have_the_requested_rate_and_are_bursty(shared_data, name):
    times = read_times(shared_data / "traces" / f"{name}.parquet")
    assert len(times) == TRACES[name] and np.isfinite(times).all()
    process = convert_trace(times)
    drawn = arrivals(process, 0.5, np.arange(12))
    # Whole turns of the trace would be exact; these begin anywhere and are a part of one.
    assert drawn.mean() == pytest.approx(0.5, abs=0.05)
    assert len({one.tobytes() for one in drawn}) == 12
    counts = drawn.reshape(12, -1, 40).sum(axis=2)
    assert counts.var() != pytest.approx(40 * 0.25, rel=0.1), "Bernoulli's variance is 10"


@pytest.mark.parametrize(
    ("process", "rate", "words"),
    [(BurstyArrivals(burst=0.7), 0.6, r"burst=0.7 must lie in \[0, 0.667\] at arrival_rate=0.6"),
     (BurstyArrivals(burst=-0.1), 0.6, "burst=-0.1 must lie in"),
     (BurstyArrivals(burst_rounds=0.5), 0.6, "burst_rounds=0.5 must be a number in \\[1, inf\\)"),
     (convert_trace(np.arange(5)), 0.0, r"arrival_rate=0 must lie in \(0, 1\]")],
)  # fmt: skip
def test_out_of_range_arrival_processes_are_rejected(process, rate, words):
    with pytest.raises(ValueError, match=words):
        ArrivalWrapper(source=SOURCE, process=process).check(np.arange(2), rate, 1)


@pytest.mark.slow
def test_configured_trace_arrivals_are_built(tmp_path):
    file = tmp_path / "mine.csv"
    file.write_text("when,tokens\n0.5,3\n1.0,4\n4.0,5\n")
    words = ("arrivals=trace", f"trace={file}", "trace_column=when")
    config = compose_config("experiment=synthetic", *words)
    made = build_at(config)
    np.testing.assert_allclose(made.process.times, [0, 0.5 / 1.75, 2.0])
    assert describe_differences(config)["arrivals"] == "trace mine"
    bursty = describe_differences(compose_config("experiment=synthetic", "arrivals=bursty"))
    assert bursty["arrivals"] == "bursty (0.5, 50 rounds)"
    for wrong, message in (
        (
            ("arrivals=poisson",),
            "arrivals=poisson must be one of bernoulli, bursty, batches, trace",
        ),
        (("arrivals=trace",), "arrivals=trace needs trace=FILE"),
        (("arrivals=trace", f"trace={file}"), "lacks column 'timestamp', it has when, tokens"),
    ):
        with pytest.raises(ValueError, match=message):
            build_at(compose_config("experiment=synthetic", *wrong))


def table(path, **columns):
    pl.DataFrame(columns).write_parquet(path)
    return path


def test_invalid_trace_times_are_rejected_in_one_sentence(tmp_path):
    file = tmp_path / "trace.parquet"
    cases = [
        ({"timestamp": [1.0, None, 2.0]}, "row 2 has no time in column 'timestamp'"),
        ({"timestamp": [1, 3, 2]}, "row 3 is earlier than the row before it, sort the table"),
        ({"timestamp": [1]}, "has 1 rows, a trace needs at least 2"),
        ({"timestamp": [4, 4]}, "all rows have the same time"),
        ({"Timestamp": ["2024-01-01 00:00:00", "noon"]}, "row 2 has no time in column 'Timestamp'"),
        ({"time": [1, 2]}, "lacks column 'timestamp', it has time"),
        ({"timestamp": ["1.5", "2.5", "soon"]}, "row 3 has no time in column 'timestamp'"),
        ({"timestamp": [*range(9), 10**6, 10**6 + 1]}, "row 10 comes 999992 after the row"),
        ({"timestamp": [*range(30), *range(10**6, 10**6 + 30), 10**9]}, r"row 31 comes .*\(2 such"),
    ]
    for columns, words in cases:
        with pytest.raises(TableError, match=words):
            read_times(table(file, **columns))
    file.write_text("nothing")
    with pytest.raises(TableError, match="not readable, cut short or not parquet"):
        read_times(file)
    with pytest.raises(TableError, match="no such file"):
        read_times(tmp_path / "none.csv")


def test_trace_times_may_be_numbers_timestamps_or_text(tmp_path):
    text = ["2024-01-01T00:00:00Z", "2024-01-01T00:00:01.5Z", "2024-01-01T00:01:00Z"]
    plain = ["2024-01-01 00:00:00", "2024-01-01 00:00:01.5", "2024-01-01 00:01:00"]
    stamps = pl.Series(plain).str.to_datetime(time_unit="us")
    for column in (text, plain, stamps, [0.0, 1.5, 60.0]):
        times = read_times(table(tmp_path / "t.parquet", TIMESTAMP=column))
        np.testing.assert_allclose(times - times[0], [0, 1.5, 60], atol=1e-6)


@pytest.mark.slow
def test_sweeps_record_arrivals_of_other_processes():
    trace = convert_trace(np.cumsum(np.random.default_rng(0).exponential(size=300)))
    for process in (BurstyArrivals(), trace):
        # At one half every seed has contexts without slackness.
        source = ArrivalWrapper(source=dataclasses.replace(SOURCE, slackness=0.0), process=process)
        data = cqbjax.sweep(
            {"random": RandomRouting()}, source, arrival_rate=[0.5], seeds=[0, 4], horizon=120
        )
        for seed in (0, 4):
            arrived = arrivals(process, 0.5, seed, 120).sum()
            last = data.sel(policy="random", seed=seed, arrival_rate=0.5).isel(round=-1)
            assert arrived - int(last.departures) == int(last.queue_length)


def test_papers_numbers_are_shown_only_for_bernoulli_arrivals():
    row, datasets = {"source": "synthetic"}, {"synthetic": "Synthetic"}
    assert printed._match_row(row, datasets) == "Synthetic"
    assert printed._match_row({**row, "arrivals": "bursty (0.5, 50 rounds)"}, datasets) is None
