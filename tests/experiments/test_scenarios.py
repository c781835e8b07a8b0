"""Scenarios in studies: which settings are read, and what stored results say of them."""

import pytest
from composing import compose_config
from tiers import cases

from cqbjax import sources
from cqbjax.cli._instantiate import make
from cqbjax.core.pytree import pytree
from cqbjax.core.scenario import oracle_is_heuristic
from cqbjax.experiments import configs, study, study_types, validation
from cqbjax.experiments.study import build_source

SHORT = ("num_seeds=2", "horizon=12", "policy=[random]")
COIN, TABLES = (
    "source=coin",
    {"gaps.csv": "gap\n3\n70\n", "times.csv": "prompt_id,a,b\n0,1,2\n1,3,4\n"},
)
LATENCIES = ("service=[rounds]", "service.rounds.latencies=times.csv")
REFUSED = {
    "slackness is not read by the source here, cqbjax.sources.Coin": (COIN, "slackness=0.1"),
    "dim is not read by the source here, cqbjax.sources.Coin": (COIN, "dim=7"),
    "burst is read with arrivals=bursty alone": ("burst=0.3",),
    "burst_rounds is read with arrivals=bursty alone": ("arrivals=batches", "burst_rounds=9"),
    "batch_most is read with arrivals=batches alone": ("batch_most=3",),
    "batch_sizes is read with arrivals=batches alone": ("batch_sizes=[1,1]",),
    "batch_most is not read beside batch_sizes":
        ("arrivals=batches", "batch_sizes=[1,1]", "batch_most=3"),
    "trace is read with arrivals=trace alone": ("trace=gaps.csv",),
    "trace_column is read with arrivals=trace alone": ("trace_column=gap",),
    "source.success is not read beside source.classes":
        (COIN, "source.classes=[0.4,0.8]", "source.success=0.5"),
    "users.orbit.return_rate is not read beside users.orbit.delays":
        ("users=[orbit]", "users.orbit.delays=gaps.csv", "users.orbit.return_rate=0.2"),
    "service.rounds.rounds is not read beside service.rounds.latencies":
        (*LATENCIES, "service.rounds.rounds=3"),
    "round_seconds=3 is read with delays alone": ("users=[orbit]", "users.orbit.round_seconds=3"),
    "latencies needs round_seconds": LATENCIES,
    "drift turns preferences from one LLM to the next, and a coin has the same for all":
        (COIN, "drift.jump_at=5"),
    "drift turns preferences from one LLM to the next, and num_servers=1":
        ("num_servers=1", "drift.quarter=9"),
    "prices need a table with costs, and this source has none": ("service=[prices]",),
    "classes=[0.4, 1.8] must be 2 numbers in (0, 1), one for each class":
        (COIN, "source.classes=[0.4,1.8]"),
    "times.csv: latencies are joined by prompt_id and LLM, and the source has no":
        (*LATENCIES, "service.rounds.round_seconds=1"),
    "delay=1.5 must be a whole number in": ("service=[late]", "service.late.delay=1.5"),
    "since=[1.0, 2.0] must be 5 numbers in [1, inf], one for each server":
        ("service=[outages]", "service.outages.since=[1,2]"),
    "slackness is not read by LogReplay, the study type here":
        ("experiment=wildchat", "slackness=0.3"),
    "arrivals=bursty is of a sweep: the log determines arrivals":
        ("experiment=wildchat", "compared=null", "arrivals=bursty"),
}  # fmt: skip
QUICK = [
    one for one in REFUSED if one.startswith(("batch_most is not", "drift turns", "latencies"))
]


def check(*words):
    config = compose_config("name=t", *words)
    validation.validate_overrides(words, config)
    return study_types.prepare_points(config, make)


@pytest.fixture
def tables(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, text in TABLES.items():
        (tmp_path / name).write_text(text)


@pytest.mark.slow
@pytest.mark.parametrize("message", cases(REFUSED, QUICK))
def test_unread_scenario_keys_are_rejected(message, tables):
    with pytest.raises(ValueError) as refusal:
        check(*REFUSED[message], *SHORT)
    assert str(refusal.value).startswith(message) and "\n" not in str(refusal.value)


def test_keys_read_by_any_grid_point_are_accepted(tables):
    assert len(check("arrivals=[bernoulli,bursty]", "burst=0.3", *SHORT)) == 2


@pytree
class Mine(sources.Synthetic):
    scale: float = 1.0


DESCRIPTIONS = {
    ("slackness=0.1",): {"source": "synthetic", "slackness": 0.1},
    (COIN, "source.classes=[0.4,0.8]"): {
        "source": "Coin", "source_settings": "classes=[0.4, 0.8],num_servers=5",
    },
    (COIN, "users=[orbit]", "users.orbit.delays=gaps.csv", "users.orbit.column=gap"): {
        "source": "Coin", "source_settings": "success=0.6,num_servers=5",
        "users": "orbit (delays gaps.csv, column gap)",
    },
    (COIN, "num_servers=2", "source.classes=[0.4,0.8]", "service=[rounds]",
     "service.rounds.rounds=3"): {
        "source": "Coin", "source_settings": "classes=[0.4, 0.8],num_servers=2",
        "service": "rounds (rounds 3, law fixed)",
    },
    ("service=[late,outages]", "service.outages.until=[9,9,9,9,4]"): {
        "source": "synthetic", "slackness": 0.03,
        "service": "late (delay 10) and outages (share 0.1, length 100.0, until [9, 9, 9, 9, 4])",
    },
}  # fmt: skip


@pytest.mark.parametrize("words", cases(DESCRIPTIONS, [*DESCRIPTIONS][1:2]), ids=" ".join)
def test_results_describe_the_source_and_its_settings(words, tables):
    (ready,) = check(*words, *SHORT)
    described = study.describe_source(ready)
    provenance = "paper" if described["source"] == "synthetic" else "own"
    assert (described.pop("stand_in"), described.pop("provenance")) == ("", provenance)
    assert described == DESCRIPTIONS[words]


def test_unset_options_of_models_are_not_described():
    of_users = {"_target_": "x", "attempts": 3, "give_up": 0.0, "patience": float("inf")}
    config = configs.Config(
        arrivals="bursty", burst=0.5, burst_rounds=50, drift={"jump_at": 7, "quarter": None},
        users={"impatient": of_users, "stay": {}}, service={"one": {}},
    )  # fmt: skip
    assert study.describe_differences(config) == {
        "arrivals": "bursty (0.5, 50 rounds)", "drift": "jump_at 7",
        "users": "impatient (attempts 3)",
    }  # fmt: skip


def test_derived_sources_are_not_named_after_the_papers_source(tables):
    config = compose_config("name=t", f"source._target_={__name__}.Mine", *SHORT)
    (ready,) = study_types.prepare_points(config, make)
    described = study.describe_source(ready)
    assert (
        described["source"] == f"{__name__}.Mine"
        and "slackness=0.03" in described["source_settings"]
    )


OURS = {
    (): False, ("arrivals=batches",): False, (COIN,): False, ("service=[lost,late]",): False,
    ("users=[stay]", "service=[one]"): False, ("drift.jump_at=5",): True,
    ("drift.jump_at=5", "arrivals=bursty", "burst=0.2"): True, ("users=[orbit]",): True,
    ("service=[lost,outages]",): True, ("service=[count]",): True,
}  # fmt: skip


@pytest.mark.parametrize("words", cases(OURS, [("service=[lost,late]",)]), ids=" ".join)
def test_oracle_is_labelled_heuristic_where_it_may_be_suboptimal(words):
    (ready,) = check(*words, *SHORT)
    assert oracle_is_heuristic(build_source(ready)) == OURS[words]
