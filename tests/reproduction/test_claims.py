"""Claims: the list is complete with places in the paper; verdicts follow from results."""

import re

import polars as pl
import pytest
import yaml
from absent import skip_or_fail
from composing import REPOSITORY, compose_config
from fabricated import fabricate
from sklearn.metrics import cohen_kappa_score

from cqbjax.results.files import StoredPoint
from reproduction import extracts
from reproduction.paper import catalogue, claims, comparison

LABELS = ("optimal", "acqb", "cqb_eps", "random")
NOTHING = pl.DataFrame(schema=comparison.COLUMNS)
AHEAD = {
    "id": "planted", "rule": "ahead", "studies": ["synthetic", "routerbench"], "data": "its own",
    "with": {"policy": "acqb", "others": ["cqb_eps", "random"], "metrics": ["gap"]},
}  # fmt: skip


def study(name="synthetic", seeds=40, change=None, labels=LABELS, **attributes):
    point = fabricate(labels, (0.7,), seeds, 200, experiment=name, **attributes)
    if change:
        point = change(point)
    config = yaml.safe_dump({"policy": {"acqb": {"c1": 1.0}}})
    return extracts.extract(
        [StoredPoint(point, {"point": "K=1"}, config)], {"table_rounds": [100, 200]}
    )


def judge_claim(claim, tables=REPOSITORY, **studies):
    return claims.judge(claim, studies, NOTHING, tables)


def swap(point):
    """Give ACQB the queues of RAND, and RAND those of ACQB."""
    names = {"acqb": "random", "random": "acqb"}
    labels = [names.get(label, label) for label in point.policy.values]
    return point.assign_coords(policy=labels)


def test_claims_state_their_place_and_rule():
    listed = claims.read()
    assert len({one["id"] for one in listed}) == len(listed) >= 35
    names = {one.name for one in catalogue.load_studies()}
    for one in listed:
        assert {"quote", "section", "line", "data", "test", "refuted"} <= one.keys(), one["id"]
        assert ("rule" in one) != ("parts" in one), one["id"]
        assert "verdict" not in one  # computed, never written down
        for part in parts_with_rules(one):
            assert part["rule"] in (*claims.RULES, "tabled", "value", "proven", "none"), one["id"]
            assert ("reason" in part) == (part["rule"] == "none"), one["id"]
            assert set(part.get("studies", ())) <= names, one["id"]


def parts_with_rules(claim):
    """Return all of a claim that has a rule: itself, its parts, and what is seen beside it."""
    whole = [claim] if "rule" in claim else claim["parts"]
    return [*whole, claim["seen"]] if "seen" in claim else whole


def test_quotes_stand_at_their_lines_of_the_paper(shared_data):
    source = shared_data.parent / "paper" / "acqb.tex"
    if not source.is_file():
        skip_or_fail(f"no {source}: the quotes are compared with the paper's source")
    lines = source.read_text().splitlines()
    for one in claims.read():
        there = " ".join(lines[one["line"] - 1 : one["line"] + 6])
        words = re.findall(r"[a-z]{4,}", re.sub(r"\[.*?\]", "", one["quote"]))
        matches = [word for word in words if word in there]
        assert len(matches) >= 0.75 * len(words), (one["id"], set(words) - set(matches))


def test_leads_shown_by_all_intervals_hold_and_reversed_ones_fail():
    held = judge_claim(AHEAD, synthetic=study())
    assert (held.verdict, held.n) == (claims.HOLDS, 40)
    assert "ahead in 2 of 2 paired comparisons" in held.evidence
    turned = judge_claim(AHEAD, synthetic=study(change=swap))
    assert turned.verdict == claims.FAILS and "behind in 2" in turned.evidence
    assert "random query and LLM in gap (T = 200: +" in turned.evidence


def test_leads_shown_by_some_intervals_hold_in_part():
    def level(point):
        queues = point.queue_length.copy()
        queues.loc[{"policy": "cqb_eps"}] = queues.sel(policy="acqb")
        return point.assign(queue_length=queues)

    part = judge_claim(AHEAD, synthetic=study(change=level))
    assert part.verdict == claims.IN_PART and "CQB-ε" in part.evidence


def test_claims_without_an_informative_interval_are_undecided():
    def level(point):
        queues = point.queue_length.copy()
        for label in ("cqb_eps", "random"):
            queues.loc[{"policy": label}] = queues.sel(policy="acqb")
        return point.assign(queue_length=queues)

    assert judge_claim(AHEAD, synthetic=study(change=level)).verdict == claims.UNDECIDED


def test_proxy_data_give_no_verdict_but_show_their_result():
    other = study(
        "routerbench", source="RouterBench slice", stand_in="a slice", provenance="stand-in"
    )
    judgement = judge_claim(AHEAD, routerbench=other)
    assert judgement.verdict == claims.CANNOT
    assert (
        "On proxy data: holds. " in judgement.evidence and "[data: a slice]" in judgement.evidence
    )
    both = judge_claim(AHEAD, synthetic=study(change=swap), routerbench=other)
    assert both.verdict == claims.FAILS  # the paper's own data decide
    assert judge_claim(AHEAD).verdict == claims.NOT_RUN


@pytest.mark.slow
def test_rank_claims_compare_means():
    asked = {"policy": "cqb_eps", "others": ["acqb", "random"], "metric": "gap", "rank": 2}
    claim = AHEAD | {"rule": "leads", "with": asked}
    assert judge_claim(claim, synthetic=study()).verdict == claims.HOLDS
    # It learns slowly: at half the rounds it is last.
    both = judge_claim(claim | {"with": asked | {"rounds": "table"}}, synthetic=study())
    assert both.verdict == claims.IN_PART and "(ranks 3, 2)" in both.evidence
    first = claim | {"with": asked | {"rank": 1}}
    assert judge_claim(first, synthetic=study()).verdict == claims.FAILS
    share = first | {"with": {**first["with"], "share": "most"}}
    assert judge_claim(share, synthetic=study()).verdict == claims.FAILS


def test_a_gap_that_grows_is_not_stable():
    claim = AHEAD | {"rule": "stable", "with": {"policy": "acqb"}}
    assert judge_claim(claim, synthetic=study()).verdict == claims.HOLDS
    assert judge_claim(claim, synthetic=study(change=swap)).verdict == claims.FAILS


def explore_more(times):
    """Give counts of round(times * what c1 = 1 and a rate of .7 give on average)."""

    def change(point):
        expected = [0.7 * sum((u + 1) ** -0.5 for u in range(1, t)) for t in (100, 200)]
        counts = point.explored.copy()
        for t, mean in zip((100, 200), expected, strict=True):
            low = int(times * mean)
            part = round(40 * (times * mean - low))
            counts.loc[{"round": t}] = low
            counts.loc[{"round": t, "seed": list(range(part))}] = low + 1
        return point.assign(explored=counts)

    return change


def test_exploration_counts_are_compared_with_their_rate():
    claim = AHEAD | {
        "rule": "explores", "with": {"policy": "acqb", "rounds": "table", "to": "rate"}
    }  # fmt: skip
    assert judge_claim(claim, synthetic=study(change=explore_more(1))).verdict == claims.HOLDS
    assert judge_claim(claim, synthetic=study(change=explore_more(2))).verdict == claims.FAILS


def test_exploration_counts_are_compared_with_their_bound():
    claim = AHEAD | {
        "rule": "explores", "with": {"policy": "acqb", "rounds": "table", "to": "bound"}
    }  # fmt: skip
    # The bound 2 c1 sqrt(T) is 1.6 times what a rate of .7 gives until T = 100, and 1.55 until 200.
    assert judge_claim(claim, synthetic=study(change=explore_more(1.5))).verdict == claims.HOLDS
    assert judge_claim(claim, synthetic=study(change=explore_more(1.8))).verdict == claims.FAILS


def test_a_bound_on_a_mean_holds_or_not():
    asked = {"policy": "acqb", "metric": "throughput", "bound": 0.71}
    claim = AHEAD | {"rule": "at_most", "with": asked}
    assert judge_claim(claim, synthetic=study()).verdict == claims.HOLDS
    low = claim | {"with": asked | {"bound": 0.1}}
    assert judge_claim(low, synthetic=study()).verdict == claims.FAILS


def test_compound_claims_hold_if_all_parts_do_and_list_untested_parts():
    part = {key: AHEAD[key] for key in ("rule", "studies", "with")} | {"about": "this half"}
    untested = {"about": "that half", "rule": "none", "reason": "no data"}
    claim = {"id": "planted", "data": "its own", "studies": ["synthetic"], "parts": [part, part]}
    both = judge_claim(claim, synthetic=study())
    assert (both.verdict, both.n) == (claims.HOLDS, 40)
    half = judge_claim(claim | {"parts": [part, untested]}, synthetic=study())
    assert half.verdict == claims.IN_PART
    assert "that half: cannot be tested here (no data)" in half.evidence
    wrong = judge_claim(claim | {"parts": [part, untested]}, synthetic=study(change=swap))
    assert wrong.verdict == claims.FAILS
    assert judge_claim(claim | {"parts": [untested, untested]}).verdict == claims.CANNOT


def test_observations_are_reported_without_a_verdict():
    claim = {"id": "planted", "rule": "none", "reason": "too few rounds", "seen": AHEAD}
    seen = judge_claim(claim, synthetic=study(change=swap))
    assert seen.verdict == claims.CANNOT and seen.n is None
    assert "too few rounds. What is seen: " in seen.evidence and "behind in 2" in seen.evidence


def test_claims_are_judged_only_by_their_setting():
    one = claims.RULES["ahead"](study(), AHEAD["with"] | {"where": {"K": 1}})
    assert one.all == 2 and "(2 by the mean)" in one.text
    assert claims.RULES["ahead"](study(), AHEAD["with"] | {"where": {"K": 2}}).all == 0


def test_printed_values_are_judged_by_the_comparison():
    row = dict.fromkeys(comparison.COLUMNS) | {
        "dataset": "WildChat-1M", "round": 25000, "policy": "acqb", "statistic": "gap_mean",
        "paper": 2.4, "ours": 2.0, "allowed": 1.0, "inside": True, "study": "wildchat", "seeds": 30,
        "provenance": "paper",
    }  # fmt: skip
    (claim,) = [one for one in claims.read() if one["id"] == "wildchat-values"]
    inside = pl.DataFrame([row], schema=comparison.COLUMNS)
    assert claims.judge(claim, {}, inside, REPOSITORY).verdict == claims.HOLDS
    outside = pl.DataFrame([row | {"ours": 9.0, "inside": False}], schema=comparison.COLUMNS)
    assert claims.judge(claim, {}, outside, REPOSITORY).verdict == claims.FAILS


def test_papers_printed_tables_are_ranked():
    (claim,) = [one for one in claims.read() if one["id"] == "lowest-gap"]
    judgement = claims.judge(claim, {}, NOTHING, REPOSITORY)
    assert "ACQB-CL is first in 6 of 6 settings" in judgement.evidence


def test_an_unknown_rule_is_refused():
    with pytest.raises(ValueError, match="claim planted has rule guess; choose from ahead"):
        judge_claim(AHEAD | {"rule": "guess"})


@pytest.mark.slow
def test_all_claims_are_judged_in_the_order_of_the_text(tmp_path):
    frame = claims.judge_all({"synthetic": study()}, NOTHING, tmp_path)
    assert frame.columns == list(claims.COLUMNS) and frame.height == len(claims.read())
    assert frame["line"].is_sorted() and set(frame["verdict"]) <= set(claims.VERDICTS)
    assert frame["evidence"].str.len_chars().min() > 10


def test_tests_that_prove_claims_exist():
    for part in (part for one in claims.read() for part in parts_with_rules(one)):
        for name in part.get("with", {}).get("tests", ()):
            path, _, test = name.partition("::")
            assert f"def {test}(" in (REPOSITORY / path).read_text(), name


@pytest.mark.slow
def test_acqb_is_configured_without_horizon_and_slackness():
    constants = [
        compose_config("policy=[acqb]", f"horizon={horizon}", f"slackness={slackness}").policy.acqb
        for horizon, slackness in ((500, 0.01), (5000, 0.2))
    ]
    assert constants[0] == constants[1]


@pytest.mark.slow
def test_cqb_eps_is_configured_with_the_horizon():
    lengths = [
        compose_config("policy=[cqb_eps]", f"horizon={t}").policy.cqb_eps.explore_rounds
        for t in (500, 5000)
    ]
    assert lengths == [50.0, 500.0]


def test_the_second_reading_agrees_as_often_as_the_page_states():
    """Both are committed: a changed verdict needs a changed page."""
    mine = yaml.safe_load((claims.CLAIMS.parent / "second_reading.yaml").read_text())
    table = pl.read_csv(REPOSITORY / "results/tables/claims.csv", infer_schema_length=None)
    verdicts = dict(table.select("id", "verdict").rows())
    assert mine.keys() == verdicts.keys() == {one["id"] for one in claims.read()}
    assert {*mine.values()} <= {*claims.VERDICTS}
    pairs = [(mine[name], verdicts[name]) for name in mine]
    same, every = sum(one == other for one, other in pairs), len(pairs)
    kappa = cohen_kappa_score(*zip(*pairs, strict=True))
    page = (REPOSITORY / "docs/results/paper.md").read_text()
    assert f"agree on {same} of {every} sentences. Cohen's kappa is {kappa:.2f}." in page
    rows = page.split("## An independent second reading of the claims")[1].count("\n| ")
    assert rows == 1 + every - same, "each disagreement is named"
