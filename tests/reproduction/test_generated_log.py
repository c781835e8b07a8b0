"""Generated logs: the builder finds every planted chain and no other, and the times are real."""

import os
import resource
import time

import numpy as np
import polars as pl
import pytest
from log_files import prepare_log

from cqbjax.logs import linking, prepare
from cqbjax.logs.linking import LinkingRule
from cqbjax.logs.shards import LogError
from reproduction import generated_log


def compare(folder, rule):
    """Return the planted chains and those found, each a set of tuples of rows in order."""
    log = prepare.load_log(folder)
    made = prepare.link(log, rule)
    rows = log.frame["row"].to_numpy()[made.members]
    linked = {tuple(part.tolist()) for part in np.split(rows, made.first[1:-1])}
    truth = pl.read_parquet(folder / "log" / prepare.TRUTH).filter(pl.col("kind") != "other")
    by_chain = truth.sort("chain", "position").group_by("chain", maintain_order=True)
    return {tuple(rows) for rows in by_chain.agg("row")["row"].to_list()}, linked, made


def test_linking_recovers_exactly_the_generated_chains(generated):
    planted, linked, made = compare(generated, LinkingRule())
    assert linked == planted
    assert made.identical > 100 and made.similar > 40 and made.early > 10


@pytest.mark.slow
@pytest.mark.parametrize(
    "rule",
    [LinkingRule(1.0), LinkingRule(0.5), LinkingRule(min_gap=600.0), LinkingRule(among="adjacent")],
)
def test_other_linking_rules_miss_generated_chains(generated, rule):
    planted, linked, _ = compare(generated, rule)
    assert linked != planted


def test_generated_gaps_arrivals_and_tokens_follow_the_real_data(generated, shared_data):
    frame = prepare.load_log(generated).frame
    truth = pl.read_parquet(generated / "log" / prepare.TRUTH)
    joined = frame.join(truth, on="row").filter(pl.col("kind") == "chain").sort("chain", "position")
    since = (joined["arrival"] - joined["ended"].shift(1)).to_numpy() / 1e6
    drawn = since[joined["position"].to_numpy() > 0]
    real = generated_log.read_gaps(shared_data / generated_log.GAPS)
    assert len(real) == 47 and np.median(real) == pytest.approx(28 * 60, rel=0.05)
    # Five standard errors of the share below each quartile.
    for share in (0.25, 0.5, 0.75):
        below = (drawn <= np.quantile(real, share)).mean()
        assert abs(below - share) < 5 * np.sqrt(share * (1 - share) / len(drawn)) + 0.02
    arrivals, tokens = generated_log.read_trace(shared_data / generated_log.TRACE)
    assert set(joined["tokens"].to_list()) <= set(tokens.tolist())
    roots = joined.filter(pl.col("position") == 0)["arrival"].sort().to_numpy()
    here = (roots - roots[0]) / (roots[-1] - roots[0])
    some = arrivals[: len(roots)] / arrivals[len(roots) - 1]
    np.testing.assert_allclose(here, some, atol=1e-9)


def test_generated_users_depart_with_the_ground_truth_probability(generated):
    truth = pl.read_parquet(generated / "log" / prepare.TRUTH).filter(pl.col("kind") == "chain")
    last = truth.group_by("chain").agg(pl.len(), pl.col("satisfaction").first())
    for hard in (True, False):
        some = last.filter((pl.col("satisfaction") < 0.6) == hard)
        attempts, left = some["len"].sum(), some.height
        expected = (some["satisfaction"] * some["len"]).sum()
        spread = np.sqrt((some["satisfaction"] * (1 - some["satisfaction"]) * some["len"]).sum())
        assert abs(left - expected) < 5 * spread + 1, (hard, attempts)


def test_the_same_seed_is_the_same_log(shared_data, tmp_path):
    some = generated_log.GeneratorSettings(60)
    for folder, settings in (("a", some), ("b", some), ("c", some._replace(seed=1))):
        generated_log.generate(tmp_path / folder, shared_data, settings)
    a, b, c = (next((tmp_path / x).glob("train-*")).read_bytes() for x in "abc")
    assert a == b != c


def test_generated_data_are_labelled(generated):
    log = prepare.load_log(generated)
    assert (log.name, log.provenance) == ("generated log", "generated")
    assert "generated log" in log.proxy_note and "standing in for WildChat-1M" in log.proxy_note
    lines = prepare.describe(log, prepare.link(log, LinkingRule()), LinkingRule())
    assert lines[-1] == f"note: {log.proxy_note}"


def test_invalid_generator_settings_and_missing_data_are_reported(tmp_path, shared_data):
    with pytest.raises(LogError, match="conversations=5 must be at least 10"):
        generated_log.generate(tmp_path, shared_data, generated_log.GeneratorSettings(5))
    with pytest.raises(LogError, match=r"longer=1 must be above 1.5"):
        generated_log.generate(tmp_path, shared_data, generated_log.GeneratorSettings(50, longer=1))
    with pytest.raises(LogError, match="azure_llm_2023_conv.parquet: no such file"):
        generated_log.generate(tmp_path, tmp_path, generated_log.GeneratorSettings(50))
    with pytest.raises(LogError, match="retrial_chains.csv: no such file"):
        generated_log.read_gaps(tmp_path / generated_log.GAPS)


@pytest.mark.slow
def test_fifty_thousand_conversations_are_recovered_in_bounded_time_and_memory(
    shared_data, tmp_path, capsys
):
    generated_log.generate(
        tmp_path / "log", shared_data, generated_log.GeneratorSettings(55_000, longer=4.8)
    )
    begun, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    prepare_log(tmp_path, tmp_path / "log")
    planted, linked, made = compare(tmp_path, LinkingRule())
    spent = time.process_time() - begun
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    with capsys.disabled():
        print(
            f"\n{len(made.members):,} conversations, {len(linked):,} chains, {made.identical:,} + "
            f"{made.similar:,} links: {spent:.1f} s of one core (embedding by words), peak memory "
            f"grew by {grown:.0f} MiB, process {os.getpid()}"
        )
    assert len(made.members) >= 50_000 and linked == planted
    assert spent < 120


def test_linking_looks_at_one_user_at_a_time(monkeypatch, generated):
    """No matrix of all pairs: what is normalised at once is one user's conversations."""
    sizes, find = [], linking._find_same_texts
    monkeypatch.setattr(
        linking, "_find_same_texts",
        lambda distinct, *rest: sizes.append(len(distinct)) or find(distinct, *rest),
    )  # fmt: skip
    log = prepare.load_log(generated)
    linking.link_conversations(log.frame, log.embeddings, LinkingRule())
    of_users = log.frame.group_by("user").agg(pl.len(), texts=pl.col("text").n_unique())
    assert max(sizes) == of_users["texts"].max() < log.frame.height / 5
    assert sum(sizes) == of_users.filter(pl.col("len") > 1)["texts"].sum()


@pytest.mark.slow
def test_ground_truth_files_are_ignored_beside_real_logs(generated, shared_data, tmp_path):
    """A file of that name beside shards that nobody generated is not looked at."""
    rows = pl.read_parquet(generated / "log" / "train-00000-of-00004.parquet")
    (tmp_path / "mine").mkdir()
    rows.write_parquet(tmp_path / "mine" / "train-0.parquet")
    pl.DataFrame({"label": ["good"]}).write_parquet(tmp_path / "mine" / prepare.TRUTH)
    prepare_log(tmp_path, tmp_path / "mine")
    log = prepare.load_log(tmp_path)
    assert (log.name, log.provenance, log.proxy_note) == ("mine", "own", "")
    assert "satisfaction" not in log.frame.columns and log.frame.height
    assert not list(tmp_path.rglob(f"cache/*/{prepare.TRUTH}"))
