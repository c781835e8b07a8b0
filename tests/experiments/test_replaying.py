"""The study of a log: its points, its words, and what is stored and shown of it."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
from composing import compose_config, run_command
from fabricated import fabricate
from log_files import by_words
from omegaconf import OmegaConf
from rich.console import Console

from cqbjax import estimation
from cqbjax.cli import prepare_data
from cqbjax.cli._instantiate import make
from cqbjax.engine.progress import Reporter
from cqbjax.experiments import configs, display, log_replay, loop, study, study_types
from cqbjax.experiments.configs import CONF
from cqbjax.experiments.grid import Job
from cqbjax.experiments.study import Factory
from cqbjax.logs import prepare
from cqbjax.logs.linking import Chains, LinkingRule
from cqbjax.logs.replay import make_replay
from cqbjax.results import store as results
from cqbjax.results.files import StoredPoint
from cqbjax.results.index import ResultIndex
from reproduction import extracts
from reproduction import run as of_paper
from reproduction.paper import catalogue, claims, comparison, printed

REPOSITORY = Path(__file__).resolve().parents[2]
TINY = ("num_seeds=2", "horizon=60", "record_every=5", "table_rounds=[30,60]",
        "policy=[optimal]", "compared=null", "kind.schedules={a: fifo, b: random}")  # fmt: skip


def config(folder, *words):
    words = [word for word in words if not word.startswith("kind.schedules")]
    made = compose_config("experiment=wildchat", f"data_dir={folder}", *words)
    schedules = {"rr": "least_served", "fifo": "fifo", "informed": "informed"}
    return made.with_values({"kind": {"schedules": None}}).with_values(
        {"kind.schedules": schedules}
    )


def run(folder, out, *words):
    made = config(folder, f"results_dir={out}", *TINY, *words)
    ready = study_types.prepare_points(made, make)
    index = ResultIndex.of_study(out / "data" / "wildchat", made.name)
    left = loop.select_missing(ready, index)
    assert not loop.run_points(left, index, make, Reporter(), Console(quiet=True), True)
    return made, loop.read_back(ready, index)


def show(points, made, stem):
    shown = study_types.make_study_type(made, make).show(points, made)
    return display.write_output(shown, made, stem, Console(quiet=True))


def replay_source(made):
    return make(made.kind)


@pytest.mark.slow
def test_wildchat_experiment_matches_the_paper():
    made = compose_config("experiment=wildchat")
    theirs = printed.read().filter(pl.col("dataset") == "WildChat-1M")
    assert set(theirs["policy"]) <= {*made.policy, *made.kind.schedules}
    assert set(made.table_rounds) == set(theirs["round"]) and made.horizon == 25_000
    assert theirs["arrival_rate"].unique().to_list() == [made.arrival_rate]
    assert (made.kind.threshold, made.kind.singles, made.num_seeds) == (0.995, 0.8, 30)
    assert prepare.ENCODER.endswith("/paraphrase-multilingual-mpnet-base-v2")
    assert prepare.MODEL == "gpt-4-1106-preview"


@pytest.mark.slow
def test_replay_study_is_stored_shown_and_labelled(generated, tmp_path):
    made, (point,) = run(generated, tmp_path)
    assert point.policy.values.tolist() == ["optimal", "rr", "fifo", "informed"]
    np.testing.assert_array_equal(
        point.queue_length.sel(policy="optimal"), point.optimal_queue_length
    )
    assert (point.queue_length >= point.optimal_queue_length).all() and not point.regret.any()
    assert "generated log" in point.attrs["stand_in"]
    written = show([point], made, "wildchat")
    text = next(path for path in written if path.suffix == ".md").read_text()
    assert "standing in for WildChat-1M" in text and "source generated log" in text
    assert "encoder words" in text and " load " in text
    assert {path.suffix for path in written} == {".csv", ".md", ".png"}


@pytest.mark.slow
def test_replay_points_run_again_only_after_changes(generated, tmp_path, monkeypatch):
    run(generated, tmp_path)
    ran = []
    describe = study.describe_point
    monkeypatch.setattr(study, "describe_point", lambda one: ran.append(1) or describe(one))
    run(generated, tmp_path)
    assert not ran
    run(generated, tmp_path, "kind.min_gap=60")
    run(generated, tmp_path, "kind.min_gap=60", "rerun=true")
    assert len(ran) == 2


@pytest.mark.slow
def test_lists_of_replay_settings_span_a_grid(generated, tmp_path):
    # Where chains of one are too few a single seed runs, beside points with two.
    grid = ("kind.threshold=[0.995,1]", "kind.singles=[0.8,0.99]")
    made, points = run(generated, tmp_path, *grid)
    seeds = {(p.attrs["threshold"], p.attrs["singles"]): p.sizes["seed"] for p in points}
    assert seeds == {(0.995, 0.8): 2, (0.995, 0.99): 1, (1, 0.8): 2, (1, 0.99): 1}
    assert len({p.attrs["load"] for p in points}) == 4
    both = results.load(tmp_path / "data" / "wildchat")
    assert both.sizes["threshold"] == both.sizes["singles"] == 2
    table = next(file for file in show(points, made, "grid") if file.suffix == ".csv")
    assert set(pl.read_csv(table)["seeds"]) == {1, 2}


WRONG = [
    (("kind.threshold=2",), "threshold=2.0 must be a cosine"),
    (("kind.among=all",), "among=all must be open or adjacent"),
    (("kind.min_gap=-5",), "min_gap=-5.0 must be seconds"),
    (("+kind.gap=5",), "experiments.log_replay.LogReplay cannot be made: "),
    (("kind.singles=1",), "singles=1 must be a share"),
    (("arrival_rate=[0.5,0.6]",), "arrival_rate must be one number"),
    (("users=[orbit]",), "users=orbit is of a sweep, and LogReplay is none"),
    (("record_every=7",), "record_every=7 must divide horizon=60"),
    (("policy=[q_ths]", "policy.q_ths.index=last"), "index=last must be one of"),
    (("horizon=90000",), "is too long"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("words", "message"), WRONG)
def test_invalid_replay_settings_are_rejected_before_running(generated, tmp_path, words, message):
    with pytest.raises(ValueError, match=re.escape(message)) as refusal:
        run(generated, tmp_path, *words)
    assert "\n" not in str(refusal.value) and not (tmp_path / "data").exists()


def test_informed_schedule_needs_ground_truth_probabilities(generated):
    log = prepare.load_log(generated)
    real = log._replace(frame=log.frame.drop("satisfaction"))
    made, chains = config(generated), prepare.link(log, LinkingRule())
    assert "informed" in replay_source(made).add_schedules({}, log, chains)
    assert "informed" not in replay_source(made).add_schedules({}, real, chains)


@pytest.fixture(scope="module")
def stored_point():
    """A stored point of the study's length."""
    made = fabricate(
        ("optimal", "acqb", "random"), (0.7,), 5, 25_000, 500, num_servers=1, experiment="wildchat"
    )
    del made.attrs["slackness"]
    return made


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data_provenance", "beside", "judged"),
    [("paper", True, True), ("generated", True, False), ("own", False, False)],
)
def test_papers_numbers_and_verdicts_apply_only_to_the_papers_log(
    stored_point, data_provenance, beside, judged
):
    """By the field; the name of the log says nothing, even where it is the paper's title."""
    point = stored_point.assign_attrs(
        source=prepare.TITLE,
        provenance=data_provenance,
        stand_in="a log" * (data_provenance == "generated"),
    )
    made = compose_config("experiment=wildchat")
    frame = of_paper.show(study_types.make_study_type(made, make), [point], made).tables[""].frame
    assert ("paper_gap_mean" in frame.columns) == beside
    extracted = {"wildchat": extracts.extract([StoredPoint(point, {}, "")], configs.to_plain(made))}
    compared = comparison.compare(extracted, catalogue.load_studies()).filter(dataset=prepare.TITLE)
    assert compared["ours"].is_not_null().any() == beside
    assert compared["inside"].is_not_null().any() == judged
    came = {
        claim["id"]: claims.judge(claim, extracted, compared, Path("tables"))
        for claim in claims.read() if claim["id"] in ("wildchat-ahead", "wildchat-values")
    }  # fmt: skip
    verdicts = {one.verdict for one in came.values()}
    assert (verdicts <= {"holds", "holds in part", "does not hold", "undecided"}) == judged
    if data_provenance == "generated":
        assert verdicts == {"cannot be tested here"}
        assert all("not judged, they are made up" in one.evidence for one in came.values())
    if data_provenance == "own":
        assert verdicts == {"not run yet"}


@pytest.mark.slow
def test_load_counts_replayed_chains_and_identical_seeds_are_merged(generated):
    """Where chains of one are too few all are kept: the load is higher, and no seed is another."""
    log, ready = prepare.load_log(generated), {}
    for singles in (0.8, 0.99):
        made = config(generated, *TINY, f"kind.singles={singles}", "num_seeds=3")
        (ready[singles],) = study_types.prepare_points(made, make)
    enough, few = ready[0.8], ready[0.99]
    assert enough.point.config.num_seeds == 3 and few.point.config.num_seeds == 1
    assert few.attributes["singletons"] < 0.99 and enough.attributes["singletons"] == 0.8
    assert any("num_seeds=3: every seed draws the same arrivals" in line for line in few.lines)
    assert not any("num_seeds" in line for line in enough.lines)
    lengths = prepare.link(log, LinkingRule()).lengths
    for one in ready.values():
        roots, counts = np.asarray(one.source.roots), np.asarray(one.source.counts)
        first = prepare.link(log, LinkingRule()).first[:-1].tolist()
        come = [
            lengths[first.index(roots[s, t, i])]
            for s, t in np.ndindex(counts.shape) for i in range(counts[s, t])
        ]  # fmt: skip
        assert one.attributes["load"] == round(sum(come) / counts.size, 3)


@pytest.mark.slow
def test_linked_chains_are_cached_per_rule(generated, monkeypatch):
    """What was linked is kept beside the log: the next command and a dry run read it."""
    log, ran, whole = prepare.load_log(generated), [], prepare.linking.link_conversations
    monkeypatch.setattr(
        prepare.linking, "link_conversations", lambda *a: ran.append(1) or whole(*a)
    )
    rule = LinkingRule(0.9, min_gap=7.5)
    first, again = prepare.link(log, rule), prepare.link(prepare.load_log(generated), rule)
    assert len(ran) == 1
    for one, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(one, other)
    prepare.link(log, rule._replace(min_gap=7.25))
    assert len(ran) == 2


@pytest.mark.slow
def test_replay_studies_combine_policies_and_schedules(generated):
    made, log = config(generated), prepare.load_log(generated)
    chains = prepare.link(log, LinkingRule())
    chosen = replay_source(made).add_schedules(
        Factory(make, {}).make_each(made.policy), log, chains
    )
    assert list(chosen) == ["optimal", "acqb", "rr", "fifo", "informed"]
    assert chosen["acqb"].alpha_scale == 0.2
    # A chain's state changes while it waits: its estimator reads no table of contexts.
    problem = make_replay(log, chains, [0], 0.7, 10, 0.8).problem(1, 10)
    assert isinstance(
        estimation.choose_belief(chosen["acqb"].estimator, problem), estimation.BlockBelief
    )
    made.kind.schedules = {"acqb": "fifo"}
    with pytest.raises(ValueError, match="kind.schedules.acqb has the label of a policy"):
        replay_source(made).add_schedules(Factory(make, {}).make_each(made.policy), log, chains)


@pytest.mark.slow
def test_resumed_replay_study_stores_the_same_arrays(generated, tmp_path):
    """The process is ended by the system after some rounds; then the command is given again."""
    words = [
        "experiment=wildchat", f"data_dir={generated}", "num_seeds=2", "horizon=900",
        "record_every=6", "table_rounds=[450,900]", "policy=[optimal,acqb]",
        "~kind.schedules.fifo", "~kind.schedules.fifo_chain", "~kind.schedules.random",
        "~kind.schedules.sjf", "~kind.schedules.informed",
    ]  # fmt: skip
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    done = run_command("run", *words, f"results_dir={whole}")
    assert done.returncode == 0, done.stderr
    script = str(REPOSITORY / "scripts" / "run.py")
    often = "import runpy, sys; from cqbjax.engine import checkpoints; checkpoints.SECONDS = 0.0; "
    often += f"sys.argv[0] = {script!r}; runpy.run_path({script!r}, run_name='__main__')"
    run = subprocess.Popen(
        [sys.executable, "-c", often, *words, f"results_dir={killed}"],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    unfinished = killed / "data" / "wildchat" / ".unfinished"
    deadline = time.monotonic() + 600
    while not list(unfinished.glob("*/*.checkpoint")) and time.monotonic() < deadline:
        time.sleep(0.005)
    run.send_signal(signal.SIGKILL)
    assert run.wait() == -signal.SIGKILL, "it was still running"
    assert list(unfinished.glob("*")) and not list(killed.rglob("*.nc"))
    again = run_command("run", *words, f"results_dir={killed}")
    assert again.returncode == 0, again.stderr
    assert not unfinished.exists()
    one, other = (results.load(folder / "data" / "wildchat") for folder in (whole, killed))
    for name in ("queue_length", "departures", "explored", "optimal_queue_length"):
        np.testing.assert_array_equal(one[name], other[name])


@pytest.mark.slow
def test_prepare_command_links_a_log_and_prints_counts(generated, tmp_path, monkeypatch, capsys):
    words = OmegaConf.load(CONF / "prepare" / "config.yaml")
    del words["hydra"], words["defaults"]
    changed = {"dataset": "wildchat", "source": str(generated / "log"), "data_dir": str(tmp_path)}
    made = configs.from_omegaconf(
        OmegaConf.merge(words, changed, {"progress": False, "model": "mine"})
    )
    asked = []

    def embed(texts, model, **rest):
        asked.append(model)
        return by_words(texts)

    monkeypatch.setattr(prepare, "embed", embed)
    monkeypatch.setattr(prepare, "load_encoder", lambda *_: None)

    def build(config):
        prepare_data.prepare_all([Job(config, {}, [])])

    build(made)
    message = " ".join(capsys.readouterr().out.split())
    assert asked == ["mine"]
    assert "generated log: built" in message and "pairs linked" in message
    assert "chains by length: 1: " in message and "standing in for WildChat-1M" in message
    build(made)
    assert "already built, nothing to do" in capsys.readouterr().out
    with pytest.raises(ValueError, match="threshold=3"):
        build(made.with_values({"wildchat.threshold": 3}))
    with pytest.raises(ValueError, match="prices=x is for a routing table"):
        build(made.with_values({"prices": "x"}))
    with pytest.raises(ValueError, match=r"model=none embeds nothing, which needs .*threshold=1"):
        build(made.with_values({"model": "none"}))
    build(made.with_values({"model": "none", "wildchat.threshold": 1}))
    assert "no prompt is embedded" in " ".join(capsys.readouterr().out.split())


def test_share_of_single_conversation_chains_is_reported():
    """Beside two longer chains a share of a half asks for two chains of one."""
    for alone, share in ((2, 0.5), (1, 0.333), (10, 0.5)):
        first = np.concatenate([[0], np.cumsum([3, 2] + [1] * alone)])
        chains = Chains(np.arange(first[-1]), first, 4, 5, 6)
        log = SimpleNamespace(name="n", proxy_note="s", provenance="p", encoder="e")
        attributes = log_replay._describe_log(log, chains, SimpleNamespace(load=1.2345), 0.5)
        printed_values = [attributes[key] for key in log_replay.CHAIN_ATTRIBUTES]
        assert printed_values == [2, 5, share, 1.234]
