"""The checked table, departure probabilities (the appendix, cell by cell) and splits."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cqbjax import datasets as ds


def small_table() -> ds.RoutingTable:
    rng = np.random.default_rng(0)
    return ds.RoutingTable(
        "small", ("a", "b", "c"), ("x", "y", "z"), ("s",) * 3, ("m", "n"),
        rng.uniform(size=(3, 2)), rng.uniform(size=(3, 2)),
    )  # fmt: skip


def with_cell(column: str, i: int, j: int, value: float) -> ds.RoutingTable:
    table = small_table()
    array = getattr(table, column).copy()
    array[i, j] = value
    return dataclasses.replace(table, **{column: array})


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("performance", np.nan, "column 'score|n' is missing"),
        ("performance", 1.5, r"column 'score|n' must be in \[0, 1\], got 1.5"),
        ("performance", -0.1, r"column 'score|n' must be in \[0, 1\]"),
        ("cost", -1.0, "column 'cost|n' must not be negative"),
        ("cost", np.nan, "column 'cost|n' is missing"),
        ("cost", np.inf, "column 'cost|n' is missing or not finite"),
    ],
)
def test_a_bad_cell_is_named_by_file_row_and_column(column, value, words):
    with pytest.raises(ds.TableError, match=words.replace("|", r"\|")) as caught:
        ds.check_table(with_cell(column, 2, 1, value), "file.csv")
    assert str(caught.value).startswith("file.csv: row 3 (prompt id 'c')")


def test_ids_servers_and_shapes_are_checked():
    table = small_table()
    ds.check_table(table)
    with pytest.raises(ds.TableError, match="rows 1 and 3, column 'prompt_id': 'a'"):
        ds.check_table(dataclasses.replace(table, prompt_ids=("a", "b", "a")))
    with pytest.raises(ds.TableError, match="at least 2 servers"):
        ds.check_table(ds.take(table, [0, 1], [0]))
    with pytest.raises(ds.TableError, match="float64 of shape"):
        ds.check_table(dataclasses.replace(table, cost=table.cost[:2]))


def test_rows_are_dropped_only_on_request_and_counted():
    table = with_cell("performance", 1, 0, np.nan)
    with pytest.raises(ds.TableError, match="is missing"):
        ds.drop_missing(table)
    remaining, rows = ds.drop_missing(table, drop_incomplete_prompts=True)
    assert remaining.prompt_ids == ("a", "c")
    assert rows.tolist() == [0, 2]
    assert remaining.notes == ("dropped 1 prompts with a missing score",)
    wide = dataclasses.replace(
        table, servers=("m", "n", "o"),
        performance=np.column_stack([table.performance, [0.0, 1.0, 0.5]]),
        cost=np.column_stack([table.cost, np.ones(3)]),
    )  # fmt: skip
    remaining, rows = ds.drop_missing(wide, drop_servers_below=0.9, drop_incomplete_prompts=True)
    assert remaining.servers == ("n", "o")
    assert remaining.notes == ("dropped server m (1 scores missing)",)
    assert remaining.num_prompts == 3 and rows.tolist() == [0, 1, 2]


# -- utilities --------------------------------------------------------------------------------


def loop_probabilities(performance, cost, rho, low, high):
    """The appendix, a cell at a time, on normalised costs."""
    out = np.zeros(performance.shape)
    for i in range(performance.shape[0]):
        raw = [p - rho * c for p, c in zip(performance[i], cost[i], strict=True)]
        for j, value in enumerate(raw):
            out[i, j] = low + (high - low) * (value - min(raw)) / (max(raw) - min(raw))
    return out


@settings(max_examples=30, deadline=None)
@given(
    st.integers(0, 10_000),
    st.sampled_from([rule for rule in ds.COST_RULES if rule != "none"]),
    st.floats(0.5, 10),
)
def test_departure_probabilities_follow_the_appendix(seed, rule, rho):
    rng = np.random.default_rng(seed)
    performance, cost = rng.uniform(size=(7, 4)), rng.exponential(size=(7, 4))
    normal = ds.normalise_cost(cost, rule)
    assert normal.min() >= 0
    assert normal.max() <= 1
    np.testing.assert_allclose(ds.normalise_cost(1e-5 * cost, rule), normal, atol=1e-12)
    chance = ds.departure_probabilities(performance, cost, rho, cost_rule=rule)
    np.testing.assert_allclose(chance, loop_probabilities(performance, normal, rho, 0.1, 0.99))
    np.testing.assert_allclose(1 / (1 + np.exp(-ds.mnl_utilities(chance))), chance)


RULES = {
    "global_max": [[0.25, 0.5], [0.75, 1]], "prompt_max": [[0.5, 1], [0.75, 1]],
}  # fmt: skip


def test_cost_rules_match_hand_computations():
    cost = np.array([[1.0, 2], [3, 4]])
    np.testing.assert_array_equal(ds.normalise_cost(cost * [[0], [1]], "prompt_max")[0], [0, 0])
    assert {*RULES, "none"} == set(ds.COST_RULES)
    for rule, known in RULES.items():
        np.testing.assert_allclose(ds.normalise_cost(cost, rule), known, err_msg=rule)
    np.testing.assert_array_equal(ds.normalise_cost(cost / 4, "none"), cost / 4)
    with pytest.raises(ValueError, match="cost_rule=none needs costs in"):
        ds.normalise_cost(cost, "none")


def test_without_min_max_unsolved_prompts_have_no_good_server():
    performance, cost = np.asarray([[1.0, 0, 0], [0, 0, 0]]), np.asarray([[1.0, 5, 0], [1, 5, 0]])
    stretched = ds.departure_probabilities(performance, cost, rho=0.5)
    assert stretched.max(axis=1).tolist() == [0.99, 0.99]
    plain = ds.departure_probabilities(performance, cost, rho=0.5, min_max=False)
    np.testing.assert_allclose(plain, [[0.1 + 0.89 * 0.9, 0.1, 0.1], [0.1, 0.1, 0.1]])


def test_constant_rows_are_handled_and_invalid_settings_rejected():
    performance, cost = np.full((2, 3), 0.5), np.full((2, 3), 0.01)
    assert ds.departure_probabilities(performance, cost)[0].tolist() == [0.545] * 3
    best = ds.departure_probabilities(performance, cost, equal_rows=1.0)
    np.testing.assert_allclose(best, 0.99)
    for wrong in ({"rho": -1}, {"low": 0}, {"high": 1}, {"cost_rule": "x"}, {"equal_rows": 2}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            ds.departure_probabilities(performance, cost, **wrong)
    with pytest.raises(ValueError, match="strictly between"):
        ds.mnl_utilities(np.array([[0.0, 0.5]]))


@pytest.mark.slow
def test_default_cost_rule_gives_the_documented_rates(shared_data):
    table = ds.read_routerbench(shared_data / "routerbench")
    departs = ds.departure_probabilities(table.performance, table.cost)
    means = departs.mean(axis=0)
    assert (round(departs.mean(), 2), round(means.max(), 2)) == (0.67, 0.85)
    assert table.servers[means.argmax()] == "zero-one-ai/Yi-34B-Chat"


# -- splits -----------------------------------------------------------------------------------


def test_splits_are_disjoint_whole_and_depend_on_the_seed_alone():
    one, again, other = ds.split(3164, 1000, 7), ds.split(3164, 1000, 7), ds.split(3164, 1000, 8)
    assert len(one.pool) == 1000
    assert sorted([*one.pool, *one.offline]) == list(range(3164))
    np.testing.assert_array_equal(one.pool, again.pool)
    assert set(one.pool) != set(other.pool)
    # two independent pools share 1000 * 1000 / 3164 = 316 on average, sd 12
    assert abs(len(set(one.pool) & set(other.pool)) - 316) < 60
    for wrong in (0, 3164):
        with pytest.raises(ValueError, match="pool_size"):
            ds.split(3164, wrong, 0)


@pytest.mark.slow
def test_a_planted_evaluation_prompt_is_caught_by_row_id_and_text(shared_data):
    table, _ = ds.load_dataset("mmlu_pro", shared_data)
    parts = ds.split(table.num_prompts, 1000, 0)
    clean = ds.drop_pool_texts(parts, table.prompts)
    ds.check_no_leak(clean, table.prompt_ids, table.prompts)
    assert len(clean.offline) < len(parts.offline), "MMLU-Pro repeats texts under other ids"
    with pytest.raises(ValueError, match="has the same text as pool row"):
        ds.check_no_leak(parts, table.prompt_ids, table.prompts)
    leaking = clean._replace(offline=np.append(clean.offline, clean.pool[3]))
    with pytest.raises(ValueError, match="is itself in the online pool"):
        ds.check_no_leak(leaking, table.prompt_ids, table.prompts)
    prompts = list(table.prompts)
    prompts[clean.offline[5]] = prompts[clean.pool[0]] + "\n"
    with pytest.raises(ValueError, match="same text"):
        ds.check_no_leak(clean, table.prompt_ids, prompts)
