"""What is not given: each default is the paper's, or what the documentation says.

A changed default changes every number of who leaves it out, so that it is changed here too.
"""

import inspect

import pytest

import cqbjax
from cqbjax import dynamics, policies, sources
from cqbjax.arena import scores
from cqbjax.core.recorders import OPTIONAL, STANDARD
from cqbjax.datasets import source as datasets
from cqbjax.datasets import utility
from cqbjax.env import Env
from cqbjax.experiments.sensitivity import Sensitivity
from cqbjax.logs import linking
from cqbjax.offline import routers
from cqbjax.offline.contrastive import ContrastiveConfig
from cqbjax.results import metrics, summaries, tables
from reproduction import generated_log

NEVER = float("inf")
DEFAULTS = [
    # Of ACQB all are in policies/test_settings.py.
    (policies.LlmRanking, dict(index="best", tries=10, retry="same")),
    (policies.Intercept, dict(share=0.5)),
    (policies.LinearBandit, dict(index="ucb", alpha=0.5, lambda0=1)),
    (policies.OptimalPolicy, dict(retry="same")),
    (policies.QueueingBandit, dict(index="ucb")),
    (policies.RandomRouting, dict(schedule="random", retry="same")),
    (policies.RouterPolicy, dict(by="prompt", schedule="oldest", retry="same", precision=1)),
    (sources.BatchArrivals, dict(most=12, sizes=None)),
    (sources.BurstyArrivals, dict(burst=0.5, burst_rounds=50)),
    (sources.Coin, dict(success=0.6, classes=None, shares=None, num_servers=2)),
    (sources.DriftWrapper, dict(jump_at=NEVER, quarter=NEVER)),
    (sources.PartlyLinear, dict(share=0.5, scale=1.5, level=0.5, spread=0.5, num_servers=5, dim=6)),
    (sources.PromptPool, dict(pool_size=1000, repeats=True, outcome="attempt")),
    (sources.SuccessProbabilities, dict(weights=None)),
    (sources.Synthetic, dict(slackness=0.03, num_servers=5, dim=5, parameters="disjoint",
                             reference_rate=None)),
    (dynamics.ServiceChannels, dict(count=1)),
    (dynamics.Impatience, dict(attempts=NEVER, give_up=0, patience=NEVER, leave=0, pretends=0)),
    (dynamics.DelayedFeedback, dict(delay=10)),
    (dynamics.LostFeedback, dict(lost=0.1)),
    (dynamics.Orbit, dict(return_rate=0.1, delays=None)),
    (dynamics.Outages, dict(share=0, length=100, servers=None, since=None, until=None, period=None,
                            down_from=None, down_rounds=None)),
    (dynamics.Prices, dict(factors=None, since=1, spread=0)),
    (dynamics.ServiceTimes, dict(rounds=1, law="fixed")),
    (linking.LinkingRule, dict(threshold=0.995, min_gap=0, among="open")),
    (generated_log.GeneratorSettings, dict(longer=2.5, days=120, users=6, retyped=0.3, early=0.01,
                             follow_ups=0.04, close=False, seed=0)),
    (utility.departure_probabilities, dict(rho=5, low=0.1, high=0.99, cost_rule="global_max",
                                           equal_rows=0.5, min_max=True)),
    (datasets.dataset_source, dict(pool_size=None, rho=None, cost_rule="global_max", low=None,
                                   high=0.99, offline_size=None, min_max=None, repeats=True)),
    (datasets.split, dict(pool_size=1000, seed=0)),
    (ContrastiveConfig, dict(iota_pos=0.5, iota_neg=0.3, temperature=0.07, learning_rate=3e-4,
                             weight_decay=0, negatives=64, prompts_per_model=5, epochs=10)),
    (routers.KNN, dict(grid=(5, 10, 20, 40, 64, 128, 256, 512, 1024), fold_count=5)),
    (routers.UMR, dict(grid=(5, 10, 20, 50), fold_count=3)),
    (routers.Logistic, dict(ridges=(0.3, 1, 3, 10), fold_count=3)),
    (routers.Carrot, dict(grid=(2, 4, 8, 16, 32, 64, 128, 256, 512), fold_count=5)),
    (Sensitivity, dict(first_seed=1_000_000, alpha_scale=(0.1, 0.2, 0.3, 0.5, 0.7, 1.0),
                       lambda0=(0.3, 1, 3, 10), c1=(0.1, 0.25, 0.5, 1), rho=(0, 1, 2, 5, 10),
                       M=(1, 3, 9, 27))),
    (summaries.mean_ci, dict(dim="seed", level=0.95)),
    (summaries.paired_difference, dict(level=0.95)),
    (scores.holm, dict(alpha=0.05)),
    (tables.throughput_table, dict(rounds=(500, 1000), reference="acqb")),
    (tables.gap_table, dict(rounds=(2500, 5000), reference=None, of="gap")),
    (tables.load_table, dict(most=0.01)),
    (cqbjax.sweep, dict(K=1, record_every=None, capacity="auto", queries=False)),
    (Env, dict(arrival_rate=0.7, horizon=1000, K=1, capacity=256)),
]  # fmt: skip


@pytest.mark.parametrize(("made", "known"), DEFAULTS, ids=[one.__name__ for one, _ in DEFAULTS])
def test_default_arguments_match_the_documentation(made, known):
    signature = inspect.signature(made).parameters
    assert {name: signature[name].default for name in known} == known


def test_metrics_state_whether_less_is_better():
    less = {"attempts", "gave_up", "dollars", "largest_wait", "queue_length", "regret", "gap"}
    more = {"score", "fairness", "departures", "throughput"}
    named = {one.name: one for one in (*STANDARD, *OPTIONAL.values())} | metrics.STANDARD
    assert {name for name, one in named.items() if one.better == "less"} == less
    assert {name for name, one in named.items() if one.better == "more"} == more
    assert {one.better for one in named.values()} == {"less", "more", ""}
