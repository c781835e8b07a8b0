"""What users feel: every recorder against the rows of the queries, and these against the round."""

import jax.numpy as jnp
import numpy as np
import pytest
from flow_balance import RECORDED, check_recorders, check_rows, check_time, runs
from tiers import cases

import cqbjax
from cqbjax.core.labels import SERVERS
from cqbjax.core.recorders import OPTIONAL, TimeInSystem, queries
from cqbjax.core.recorders.users import QUANTILES, bin_times, bin_upper_edges, quantile, time_bin
from cqbjax.dynamics import Impatience, Orbit, ServiceChannels, ServiceTimes
from cqbjax.policies import RandomRouting
from cqbjax.results.query_log import tabulate_queries as rows_of
from cqbjax.sources import ArrivalWrapper, BatchArrivals, PromptPool, Synthetic

HORIZON = 120
DRAW = np.random.default_rng(4)
POOL = PromptPool(
    contexts=DRAW.normal(size=(30, 4)) / 2, utilities=DRAW.normal(size=(30, 3)) - 0.3,
    pool_size=20, dollars=DRAW.uniform(size=(30, 3)), scores=DRAW.uniform(size=(30, 3)),
)  # fmt: skip
# Source, users, service, and the rounds that an attempt takes.
SCENARIOS = {
    "paper": (POOL, [], [], 1),
    "several": (
        ArrivalWrapper(source=POOL, process=BatchArrivals(sizes=[1, 2])),
        [Orbit(return_rate=0.4), Impatience(attempts=4, leave=0.02)],
        [ServiceChannels(count=2), ServiceTimes(rounds=2)],
        2,
    ),
}


@pytest.fixture(scope="module", params=cases(SCENARIOS, ["paper"]))
def data(request):
    source, users, service, takes = SCENARIOS[request.param]
    policies = {"random": RandomRouting(schedule="random")}
    made = cqbjax.sweep(
        policies, source, arrival_rate=[0.4], num_seeds=2, horizon=HORIZON, record=RECORDED,
        queries=True, users=users, service=service, capacity=96,
    )  # fmt: skip
    return made.assign_attrs(service_time=takes)


def test_query_records_satisfy_flow_balance(data):
    for run, rows in runs(data):
        assert (rows["outcome"] == 1).sum() > 10
        check_rows(run, rows)
        check_time(run, rows)
        first, takes = rows["first_service"], data.attrs["service_time"]
        once = (rows["outcome"] == 1) & (rows["attempts"] == 1)
        assert (rows["departure"][once] - first[once] == takes - 1).all()
        begun = ~np.isnan(first) & (rows["attempts"] == 0)
        assert (first[begun] == HORIZON).all()


def test_other_scenarios_label_the_oracle_as_heuristic(data, request):
    assert ("yardstick" in data.attrs) == (request.node.callspec.id != "paper")


def test_recorders_agree_with_query_records(data):
    for run, rows in runs(data):
        check_recorders(run, rows, HORIZON)
        assert (run.traffic.isel(round=-1) > 0).all()
        for server in range(3):
            np.testing.assert_array_equal(run[f"traffic_{server}"], run.traffic[..., server])


def test_query_records_of_all_runs_form_one_table(data):
    named = data.assign_attrs({SERVERS: "small, large, huge"})
    table = rows_of([named])
    columns = ["arrival_rate", "policy", "seed", "query", "arrival", "first_service", "departure"]
    columns += ["outcome", "attempts", "server", "llm", "dollars", "score", "prompt"]
    assert table.columns == columns and table.height == sum(
        len(r["arrival"]) for _, r in runs(data)
    )
    own = table.filter(policy="random", seed=1)
    ((_, reported),) = [one for one in runs(data) if (one[0].policy, one[0].seed) == ("random", 1)]
    for name, values_ in reported.items():
        if name != "outcome":
            np.testing.assert_array_equal(own[name].cast(float).fill_null(np.nan), values_)
    assert own["outcome"].to_list() == [queries.OUTCOMES[int(one)] for one in reported["outcome"]]
    llms = {None: None, 0: "small", 1: "large", 2: "huge"}
    assert own["llm"].to_list() == [llms[one] for one in own["server"].to_list()]
    two = [data.assign_attrs(K=1), data.assign_attrs(K=2)]
    assert rows_of(two)["K"].to_list() == [1] * table.height + [2] * table.height
    with pytest.raises(ValueError, match="run the study with queries=true"):
        rows_of([data.drop_vars("queries")])


def test_quantiles_of_any_times_are_within_two_percent():
    draw, horizon = np.random.default_rng(0), 100_000
    for times in (
        draw.geometric(0.3, 4000),
        np.ceil(draw.lognormal(5, 2, 4000)).clip(1, horizon).astype(int),
    ):
        bins = np.asarray(time_bin(times))
        counts = np.bincount(bins, minlength=len(bin_times(horizon)))
        assert len(counts) == len(bin_times(horizon)), "every time has a bin"
        assert (np.abs(bin_times(horizon)[bins] / times - 1) < 0.02).all()
        for share in QUANTILES.values():
            known = np.sort(times)[int(np.ceil(share * len(times))) - 1]
            assert abs(quantile(counts, share, horizon) / known - 1) < 0.02
    assert np.isnan(quantile(np.zeros(5), 0.5, 10))


def test_upper_edge_of_a_time_bin_is_its_longest_time():
    horizon = 5_000
    bins = np.asarray(time_bin(np.arange(1, horizon + 1)))
    last = bin_upper_edges(horizon)
    assert (np.arange(1, horizon + 1) <= last[bins]).all()
    below = np.concatenate([[0], last])[bins]
    assert (np.arange(1, horizon + 1) > below * (1 - 1e-5)).all()


def test_cost_per_query_is_nan_before_the_first_departure():
    """Much is paid in the first rounds for who is not satisfied yet: that is no price a query."""
    for name in ("dollars", "score", "attempts", "gave_up"):
        assert np.isnan(OPTIONAL[name].read((jnp.array([2.0, 0.0]), jnp.zeros(2)))), name
        assert OPTIONAL[name].read((jnp.array([2.0, 4.0]), jnp.zeros(2))) == 0.5
    nobody = OPTIONAL["time_in_system"].summaries(np.zeros((2, len(bin_times(100)))), 100)
    assert len(nobody) == 15 and all(np.isnan(one.values) for one in nobody.values())


@pytest.mark.parametrize("name", ["dollars", "score"])
def test_a_source_without_a_table_is_refused_before_anything_runs(name):
    with pytest.raises(ValueError, match=f"record={name} needs a table with costs and scores"):
        cqbjax.sweep(
            {"random": RandomRouting()}, Synthetic(), arrival_rate=[0.4], num_seeds=1, horizon=10,
            record=[name],
        )  # fmt: skip


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (["nothing"], "record=nothing is unknown; choose from time_in_system, attempts"),
        ("attempts", "record=attempts must be a list"),
        (["attempts", "attempts"], "has the name attempts, which is taken"),
        ([TimeInSystem()] * 2, "has the name time_in_system, which is taken"),
    ],
)
def test_unrecordable_quantities_are_rejected(record, message):
    with pytest.raises(ValueError, match=message):
        cqbjax.sweep(
            {"random": RandomRouting()}, POOL, arrival_rate=[0.4], num_seeds=1, horizon=10,
            record=record,
        )  # fmt: skip
