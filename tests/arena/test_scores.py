"""Scores of the arena beside worked examples, SciPy, and the values that rliable's tests print."""

import numpy as np
import polars as pl
import pytest
import scipy.stats

from cqbjax.arena import scores


def rows(gaps):
    """Return rows of {task: {policy: gaps by seed}}."""
    return pl.DataFrame([
        {"task": task, "policy": label, "seed": seed, "gap": float(gap)}
        for task, policies in gaps.items()
        for label, by_seed in policies.items()
        for seed, gap in enumerate(by_seed)
    ])  # fmt: skip


def test_interquartile_mean_matches_rliable():
    # Their tests/rliable/metrics_test.py: runs by tasks, and what comes out.
    for runs, value in (([[1, 2], [2, 2], [1, 1], [2, 1]], 1.5), ([[1, 1], [2, 2], [3, 3]], 2)):
        assert scores.iqm(np.array(runs, float)) == value
    for shape in ((30, 14), (5, 3), (2, 2), (7, 1)):
        drawn = np.random.default_rng(shape[0]).standard_cauchy(shape)
        theirs = scipy.stats.trim_mean(drawn, proportiontocut=0.25, axis=None)
        np.testing.assert_allclose(scores.iqm(drawn), theirs)
    both = np.stack([drawn, drawn + 1])
    np.testing.assert_allclose(scores.iqm(both), [theirs, theirs + 1])


def test_bootstrap_resamples_runs_within_each_task():
    # Within a task all runs are equal: resampling them changes nothing, mixing tasks would.
    equal = np.tile([0.0, 1.0], (10, 1))
    low, high = scores.bootstrap(equal, lambda runs: runs.mean(axis=(-2, -1)))
    assert low == high == 0.5
    drawn = np.random.default_rng(1).normal(size=(40, 6)) + np.arange(6)
    low, high = scores.bootstrap(drawn, lambda runs: runs.mean(axis=(-2, -1)))
    error = np.sqrt((drawn.var(axis=0) / 40).mean() / 6)
    np.testing.assert_allclose([low, high], drawn.mean() + 1.96 * error * np.array([-1, 1]),
                               rtol=0.02)  # fmt: skip
    # 90% would be a sixth narrower, 99% a third wider.
    np.testing.assert_allclose(high - low, 2 * 1.96 * error, rtol=0.06)


def test_holm_correction_steps_down():
    # Holm (1979): .005 <= .05 / 4 and .01 <= .05 / 3, but .03 > .05 / 2, and then no other.
    assert scores.holm([0.01, 0.04, 0.03, 0.005]) == [True, False, False, True]
    assert scores.holm([0.02, 0.04]) == [True, True]
    assert scores.holm([0.026, 0.026]) == [False, False]
    assert scores.holm([]) == []


def test_paired_test_is_the_wilcoxon_signed_rank_test():
    # 2^n signs are equally likely: all of n differences on one side have p = 2 / 2^n.
    assert scores.paired_p(np.arange(1.0, 11.0)) == pytest.approx(2 / 2**10)
    # 29 of 30 seeds decide, however large the gap of the last one is.
    often = np.append(np.arange(1.0, 30.0), -1e6)
    assert scores.paired_p(often) < 1e-4 < 0.05 < scipy.stats.ttest_1samp(often, 0).pvalue
    assert scores.paired_p(np.zeros(5)) == scores.paired_p(np.array([3.0])) == 1.0


def test_a_policy_not_distinguished_from_the_best_is_tied_only_if_scores_are_close():
    noise = np.random.default_rng(3).normal(size=(2, 20))
    wide = {"x": 10 + noise[0], "y": 10.3 + 5 * noise[1], "copy": 10 + noise[0]}
    ends = {"random": [100] * 20, "optimal": [0] * 20}
    made = scores.group_policies(rows({"a": wide | ends, "b": {**wide, "random": [11] * 20}}))
    one = {
        (row["task"], row["policy"]): (row["standing"], row["same_as"]) for row in made.to_dicts()
    }
    assert one["a", "copy"] == ("best", None) and one["a", "x"] == ("tied", "copy")
    assert one["a", "y"] == ("tied", None) and one["b", "y"] == ("undecided", None)
    assert ("a", "optimal") not in one


def test_random_routing_scores_zero_and_the_oracle_one():
    made = scores.add_scores(
        rows({"a": {"random": [0, 0, 60], "optimal": [0] * 3, "x": [5] * 3, "y": [40] * 3}})
    )
    by_label = dict(made.group_by("policy").agg(pl.col("score").mean()).iter_rows())
    assert by_label == {"random": 0.0, "optimal": 1.0, "x": 0.75, "y": -1.0}
    with pytest.raises(ValueError, match="task a has no run of random"):
        scores.add_scores(rows({"a": {"x": [1, 2]}}))
    no_gap = scores.add_scores(rows({"a": {"random": [-1, 1], "x": [1, 2]}}))
    assert no_gap["score"].null_count() == 4


def test_means_and_gaps_have_student_t_intervals():
    made = rows({"a": {"x": [1, 2, 6], "y": [2, 4, 9]}})
    (one,) = scores.average(made.filter(policy="x"), ["gap"]).to_dicts()
    ends = scipy.stats.t.interval(0.95, 2, 3.0, scipy.stats.sem([1, 2, 6]))
    np.testing.assert_allclose([one["gap"], one["gap_low"], one["gap_high"]], [3.0, *ends])
    assert scores.find_best(made) == {"a": "x"}
    (best, other) = scores.compare_with_best(made).to_dicts()
    assert (best["behind"], best["behind_low"], best["behind_high"]) == (0, None, None)
    ends = scipy.stats.t.interval(0.95, 2, 2.0, scipy.stats.sem([1, 2, 3]))
    np.testing.assert_allclose([other["behind_low"], other["behind_high"]], ends)


def test_the_oracle_is_not_the_best_policy_of_a_task():
    made = rows({"a": {"optimal": [0, 0, 0], "x": [1, 2, 6], "y": [2, 4, 9]}})
    assert scores.find_best(made) == {"a": "x"}
    differences = scores.compare_with_best(made).select("policy", "behind")
    assert dict(differences.iter_rows()) == {"optimal": -3.0, "x": 0.0, "y": 2.0}


def test_policies_that_do_not_differ_significantly_share_a_group():
    noise = np.random.default_rng(3).normal(size=(3, 20))
    overlapping = {"x": 10 + noise[0], "y": 10 + noise[1], "slow": 20 + noise[2]}
    separate = {"x": 10 + noise[0], "y": 13 + noise[0], "slow": 20 + noise[2]}
    last = {"random": 90 + noise[0]}
    tasks = {"alike": overlapping | last, "apart": separate | last | {"optimal": [0] * 20}}
    made = scores.group_policies(rows(tasks).sort("task", "policy"))
    by_task = {(one["task"], one["policy"]): one["group"] for one in made.to_dicts()}
    assert by_task == {
        ("alike", "x"): 1, ("alike", "y"): 1, ("alike", "slow"): 2, ("alike", "random"): 3,
        ("apart", "x"): 1, ("apart", "y"): 2, ("apart", "slow"): 3, ("apart", "random"): 4,
    }  # fmt: skip


def test_holm_correction_counts_every_policy_of_the_task():
    """p = .03 is not significant if ten policies are compared with the best."""
    # Seven differences, all above 0 but the least: p = 4 / 2^7.
    one = {"x": np.zeros(7), "y": np.array([-1.0, 2, 3, 4, 5, 6, 7])}
    assert scores.paired_p(one["y"]) == pytest.approx(4 / 2**7)

    def groups_of(others):
        made = scores.group_policies(rows({"a": one | others, "b": {"random": [90.0] * 7}}))
        return {*made.filter(policy="y", task="a")["group"]}

    assert groups_of({"random": np.arange(90.0, 97)}) == {2}
    # Nine that are as far from the best: the smallest p is not below .05 / 10.
    many = {f"z{i}": one["y"] + np.arange(7) * i for i in range(9)}
    assert groups_of({"random": np.arange(90.0, 97)} | many) == {1}


def test_means_over_tasks_exclude_policies_with_missing_tasks_or_seeds():
    made = scores.add_scores(rows({
        "a": {"random": [8, 12], "x": [1, 3], "y": [2, 3], "z": [0, 0]},
        "b": {"random": [4, 4], "x": [2, 2], "y": [2]},
    }))  # fmt: skip
    assert scores.score_matrix(made, "y", ["a", "b"]) is None
    over = scores.aggregate_scores(made, ["a", "b"])
    assert over["policy"].to_list() == ["x", "random"] and {*over["tasks"]} == {2}
    assert scores.aggregate_scores(made, ["a"])["policy"].to_list() == ["z", "x", "y", "random"]
