"""The linking rule on cases with a known answer, against a plain reference, and on real times."""

import os
import re
import subprocess
import sys
from pathlib import Path
from unittest import mock

import log_files
import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from log_files import SECOND, heavy

from cqbjax.logs import conversations, linking
from cqbjax.logs.linking import LinkingRule
from cqbjax.logs.shards import LogError
from reproduction.generated_log import GAPS

# Cosines of texts 1, 2, 3 with text 0.
COSINES = (1.0, 0.996, 0.96, 0.5)
EMBEDDINGS = np.array([[c, np.sqrt(1 - c**2)] for c in COSINES])


def log(*rows):
    """Return a frame of (user, text, arrival, ended) in seconds."""
    frame = pl.DataFrame(rows, ["user", "text", "arrival", "ended"], orient="row")
    scaled = (pl.col("arrival", "ended") * SECOND).cast(pl.Int64)
    return frame.with_columns(scaled).with_row_index("row").cast({"row": pl.Int64})


def chains(frame, rule=LinkingRule(), embeddings=EMBEDDINGS):  # noqa: B008  a constant
    made = linking.link_conversations(frame, embeddings, rule)
    return [tuple(part.tolist()) for part in np.split(made.members, made.first[1:-1])], made[2:]


CASES = {
    "identical": ([(0, 0, 0, 5), (0, 0, 9, 12)], [(0, 1)], (1, 0, 0)),
    "similar enough": ([(0, 0, 0, 5), (0, 1, 9, 12)], [(0, 1)], (0, 1, 0)),
    "not similar enough": ([(0, 0, 0, 5), (0, 2, 9, 12)], [(0,), (1,)], (0, 0, 0)),
    "another user": ([(0, 0, 0, 5), (1, 0, 9, 12)], [(0,), (1,)], (0, 0, 0)),
    "before the end": ([(0, 0, 0, 5), (0, 0, 4, 12)], [(0,), (1,)], (0, 0, 1)),
    "at the end": ([(0, 0, 0, 5), (0, 0, 5, 12)], [(0,), (1,)], (0, 0, 1)),
    "identical times": ([(0, 0, 0, 5), (0, 0, 0, 5)], [(0,), (1,)], (0, 0, 1)),
    "unsorted": ([(0, 0, 9, 12), (0, 0, 0, 5)], [(1, 0)], (1, 0, 0)),
    "a chain of three": ([(0, 0, 0, 5), (0, 1, 9, 12), (0, 0, 20, 22)], [(0, 1, 2)], (0, 2, 0)),
    "three at once are two that came early": (
        [(0, 0, 0, 5), (0, 0, 1, 6), (0, 0, 2, 7)], [(0,), (1,), (2,)], (0, 0, 2),
    ),
    "another question between": (
        [(0, 0, 0, 5), (0, 3, 6, 8), (0, 0, 9, 12)], [(0, 2), (1,)], (1, 0, 0),
    ),
    "two users behind one address": (
        [(0, 0, 0, 5), (0, 3, 1, 6), (0, 0, 8, 9), (0, 3, 10, 12)], [(0, 2), (1, 3)], (2, 0, 0),
    ),
    "each has one retrial": (
        # The second is sent while the first is answered: the third is a retrial of the second,
        # which is the later one, and the fourth of the third.
        [(0, 0, 0, 5), (0, 0, 2, 7), (0, 0, 9, 12), (0, 0, 15, 18)], [(0,), (1, 2, 3)], (2, 0, 1),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_linking_rule_solves_a_case_with_known_answer(case):
    rows, expected, counts = CASES[case]
    assert chains(log(*rows)) == (expected, counts)


def test_linking_depends_on_threshold_gap_and_order():
    rows = log((0, 0, 0, 5), (0, 2, 9, 12), (0, 3, 13, 14), (0, 0, 80, 90))
    assert chains(rows, LinkingRule(0.95))[0] == [(0, 1, 3), (2,)]
    assert chains(rows, LinkingRule(0.97))[0] == [(0, 3), (1,), (2,)]
    assert chains(rows, LinkingRule(1.0), None)[0] == [(0, 3), (1,), (2,)]
    assert chains(rows, LinkingRule(0.97, min_gap=75))[0] == [(0, 3), (1,), (2,)]
    assert chains(rows, LinkingRule(0.97, min_gap=75.1)) == ([(0,), (1,), (2,), (3,)], (0, 0, 1))
    assert chains(rows, LinkingRule(0.95, among="adjacent"))[0] == [(0, 1), (2,), (3,)]


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (LinkingRule(0.0), "threshold=0"),
        (LinkingRule(1.01), "threshold=1.01"),
        (LinkingRule(min_gap=-1), "min_gap=-1"),
        (LinkingRule(among="all"), "among=all must be open or adjacent"),
        (LinkingRule(), "needs embeddings"),
    ],
)
def test_out_of_range_linking_rules_are_rejected_in_one_sentence(rule, words):
    with pytest.raises(LogError, match=words):
        linking.link_conversations(log((0, 0, 0, 1)), None, rule)


def reference(rows, rule, embeddings=EMBEDDINGS):
    """Link pair by pair, as the rule is written."""
    order = sorted(range(len(rows)), key=lambda i: (rows[i][2], i))
    after = {}
    for i in order:
        user, text, arrival, _ = rows[i]
        before = [j for j in order[: order.index(i)] if rows[j][0] == user]
        earlier = [
            j for j in (before[-1:] if rule.among == "adjacent" else before)
            if j not in after and rows[j][3] < arrival
            and rows[j][3] + rule.min_gap <= arrival
            and (rows[j][1] == text or embeddings[rows[j][1]] @ embeddings[text] >= rule.threshold)
        ]  # fmt: skip
        if earlier:
            after[earlier[-1]] = i
    linked = []
    for root in order:
        if root not in after.values():
            linked.append([root])
            while linked[-1][-1] in after:
                linked[-1].append(after[linked[-1][-1]])
    return [tuple(chain) for chain in linked]


@settings(deadline=None, max_examples=150)
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 30), st.integers(1, 9)),
        min_size=1, max_size=14,
    ),
    st.sampled_from([0.4, 0.95, 0.995, 1.0]),
    st.sampled_from([0, 3, 10]),
    st.sampled_from(["open", "adjacent"]),
    st.sampled_from([1, 3, 1024]),
)  # fmt: skip
def test_linking_matches_the_pairwise_reference(drawn, threshold, gap, among, block):
    rows = [(user, text, arrival, arrival + took) for user, text, arrival, took in drawn]
    rule = LinkingRule(threshold, gap, among)
    with mock.patch.object(linking, "BLOCK", block):
        assert chains(log(*rows), rule)[0] == reference(rows, rule)


def test_blockwise_linking_matches_the_pairwise_reference(monkeypatch):
    monkeypatch.setattr(linking, "BLOCK", 64)
    frame, vectors = heavy(300, 220, 48)
    unit = vectors / np.linalg.norm(vectors.astype(float), axis=1, keepdims=True)
    rows = [(u, t, a / SECOND, e / SECOND) for _, u, t, a, e in frame.iter_rows()]
    made = linking.link_conversations(frame, vectors, LinkingRule())
    parts = np.split(made.members, made.first[1:-1])
    assert [tuple(part.tolist()) for part in parts] == reference(rows, LinkingRule(), unit)
    assert made.similar > 20 and made.identical > 10


@pytest.mark.slow
def test_a_user_with_many_prompts_takes_little_time_and_memory():
    """By itself, so that the peak is its own: 2,000 users' texts, and one with 8,000 of them."""
    script = Path(log_files.__file__)
    done = subprocess.run(
        [sys.executable, script, "20000", "8000"], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(script.parents[1])},
    )  # fmt: skip
    seconds, gibibytes = (
        float(x) for x in re.findall(r"([\d.]+) s of all cores.* ([\d.]+) GiB", done.stdout)[0]
    )
    assert seconds < 10 and gibibytes < 1, done.stdout


def test_subsampling_keeps_all_longer_chains_and_the_share_asked_for():
    lengths = np.array([1] * 900 + [2] * 20 + [5] * 5)
    remaining = linking.subsample(lengths, 0.8, np.random.default_rng(0))
    assert (lengths[remaining] > 1).sum() == 25 and (lengths[remaining] == 1).sum() == 100
    assert len(set(remaining.tolist())) == 125 and (np.diff(remaining) > 0).all()
    other = linking.subsample(lengths, 0.8, np.random.default_rng(1))
    assert set(remaining.tolist()) != set(other.tolist())
    few = linking.subsample(np.array([1, 1, 3, 3]), 0.8, np.random.default_rng(0))
    assert few.tolist() == [0, 1, 2, 3], "all singletons where there are too few"
    with pytest.raises(LogError, match="no chain has two conversations or more"):
        linking.subsample(np.ones(5, int), 0.8, np.random.default_rng(0))


def real(shared_data, tokens):
    """Return the 79 real conversations as a log: each user's group is one text."""
    frame = pl.read_csv(shared_data / GAPS, try_parse_dates=True)
    # A group's times are real, its texts unknown: one number a group says that they are alike.
    times = frame["timestamp"].cast(pl.Datetime("us", "UTC")).to_physical()
    waited = round(SECOND * (conversations.FIRST_TOKEN + tokens / conversations.TOKENS_PER_SECOND))
    return frame, pl.DataFrame(
        {"row": np.arange(len(frame)), "user": frame["user"] - 1, "text": frame["chain"] - 1,
         "arrival": times - waited, "ended": times},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("tokens", "among", "remaining"),
    [(0, "open", 47), (211, "open", 47), (480, "open", 47), (490, "open", 46), (1000, "open", 45),
     (211, "adjacent", 47)],
)  # fmt: skip
def test_linking_rule_finds_the_documented_share_of_real_retrials(
    shared_data, tokens, among, remaining
):
    frame, log = real(shared_data, tokens)
    assert len(frame) == 79 and frame["chain"].n_unique() == 32
    made = linking.link_conversations(log, None, LinkingRule(1.0, among=among))
    groups = [
        set(frame["chain"][part.tolist()]) for part in np.split(made.members, made.first[1:-1])
    ]
    assert all(len(group) == 1 for group in groups), "no two groups are joined"
    assert made.identical == remaining


def test_cosines_equal_to_the_threshold_are_linked():
    """Of vectors whose cosine is a half without rounding."""
    half = np.array([[1.0, 1, 1, 1], [1, 0, 0, 0]])
    rows = log((0, 0, 0, 5), (0, 1, 9, 12))
    assert chains(rows, LinkingRule(0.5), half)[0] == [(0, 1)]
    assert chains(rows, LinkingRule(0.501), half)[0] == [(0,), (1,)]
