"""Claims: their list is whole and says where each stands, and verdicts follow from results."""

import re

import polars as pl
import pytest
import yaml
from absent import absent
from composing import CONF, REPOSITORY, composed
from fabricated import fabricate
from omegaconf import OmegaConf

from cqbjax.paper import catalogue, claims, comparison
from cqbjax.paper.rules import RULES
from cqbjax.results import extracts
from cqbjax.store.layout import Stored

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
    return extracts.extract([Stored(point, {"point": "K=1"}, config)], {"table_rounds": [100, 200]})


def judged(claim, tables=REPOSITORY, **studies):
    return claims.judge(claim, studies, NOTHING, tables)


def swapped(point):
    """Give ACQB the queues of RAND, and RAND those of ACQB."""
    names = {"acqb": "random", "random": "acqb"}
    labels = [names.get(label, label) for label in point.policy.values]
    return point.assign_coords(policy=labels)


def test_every_claim_says_where_it_stands_and_how_it_is_decided():
    listed = claims.read()
    assert len({one["id"] for one in listed}) == len(listed) >= 35
    names = {one.name for one in catalogue.studies()}
    for one in listed:
        assert {"quote", "section", "line", "data", "test", "rule"} <= one.keys(), one["id"]
        assert "verdict" not in one  # computed, never written down
        assert one["rule"] in (*RULES, "tabled", "value", "proven", "none"), one["id"]
        assert ("reason" in one) == (one["rule"] == "none"), one["id"]
        assert set(one.get("studies", ())) <= names, one["id"]
        assert (CONF / "experiment").is_dir()


def test_quotes_stand_at_their_lines_of_the_paper(shared_data):
    source = shared_data.parent / "paper" / "acqb.tex"
    if not source.is_file():
        absent(f"no {source}: the quotes are compared with the paper's source")
    lines = source.read_text().splitlines()
    for one in claims.read():
        there = " ".join(lines[one["line"] - 1 : one["line"] + 6])
        words = re.findall(r"[a-z]{4,}", re.sub(r"\[.*?\]", "", one["quote"]))
        matches = [word for word in words if word in there]
        assert len(matches) >= 0.75 * len(words), (one["id"], set(words) - set(matches))


def test_a_lead_that_every_interval_shows_holds_and_its_opposite_does_not():
    held = judged(AHEAD, synthetic=study())
    assert (held.verdict, held.n) == (claims.HOLDS, 40)
    assert "ahead in 2 of 2 paired comparisons" in held.evidence
    turned = judged(AHEAD, synthetic=study(change=swapped))
    assert turned.verdict == claims.FAILS and "behind in 2" in turned.evidence
    assert "RAND in gap (T = 200: +" in turned.evidence


def test_a_lead_that_one_interval_shows_holds_in_part():
    def level(point):
        queues = point.queue_length.copy()
        queues.loc[{"policy": "cqb_eps"}] = queues.sel(policy="acqb")
        return point.assign(queue_length=queues)

    part = judged(AHEAD, synthetic=study(change=level))
    assert part.verdict == claims.IN_PART and "CQB-ε" in part.evidence


def test_where_no_interval_tells_anything_nothing_is_decided():
    def level(point):
        queues = point.queue_length.copy()
        for label in ("cqb_eps", "random"):
            queues.loc[{"policy": label}] = queues.sel(policy="acqb")
        return point.assign(queue_length=queues)

    assert judged(AHEAD, synthetic=study(change=level)).verdict == claims.UNDECIDED


def test_data_that_stand_in_decide_nothing_and_say_how_it_fares_there():
    other = study("routerbench", source="RouterBench slice", stand_in="a slice")
    judgement = judged(AHEAD, routerbench=other)
    assert judgement.verdict == claims.CANNOT
    assert "stand in: holds. " in judgement.evidence and "[data: a slice]" in judgement.evidence
    both = judged(AHEAD, synthetic=study(change=swapped), routerbench=other)
    assert both.verdict == claims.FAILS  # the paper's own data decide
    assert judged(AHEAD).verdict == claims.NOT_RUN


@pytest.mark.slow
def test_ranks_are_of_means_and_most_is_more_than_half():
    asked = {"policy": "cqb_eps", "others": ["acqb", "random"], "metric": "gap", "rank": 2}
    claim = AHEAD | {"rule": "leads", "with": asked}
    assert judged(claim, synthetic=study()).verdict == claims.HOLDS
    # It learns slowly: at half the rounds it is last.
    both = judged(claim | {"with": asked | {"rounds": "table"}}, synthetic=study())
    assert both.verdict == claims.IN_PART and "(ranks 3, 2)" in both.evidence
    first = claim | {"with": asked | {"rank": 1}}
    assert judged(first, synthetic=study()).verdict == claims.FAILS
    share = first | {"with": {**first["with"], "share": "most"}}
    assert judged(share, synthetic=study()).verdict == claims.FAILS


def test_a_gap_that_grows_is_not_stable():
    claim = AHEAD | {"rule": "settled", "with": {"policy": "acqb"}}
    assert judged(claim, synthetic=study()).verdict == claims.HOLDS
    assert judged(claim, synthetic=study(change=swapped)).verdict == claims.FAILS


def test_exploration_is_held_against_its_own_rate():
    asked = {"policy": "acqb", "rounds": "table"}
    claim = AHEAD | {"rule": "explores", "with": asked}

    def exploring(times):
        def change(point):
            # Fabricated counts, here round(times * what c1 = 1 and a rate of .7 give on average).
            expected = [0.7 * sum((u + 1) ** -0.5 for u in range(1, t)) for t in (100, 200)]
            counts = point.explored.copy()
            for t, mean in zip((100, 200), expected, strict=True):
                low = int(times * mean)
                part = round(40 * (times * mean - low))
                counts.loc[{"round": t}] = low
                counts.loc[{"round": t, "seed": list(range(part))}] = low + 1
            return point.assign(explored=counts)

        return change

    assert judged(claim, synthetic=study(change=exploring(1))).verdict == claims.HOLDS
    assert judged(claim, synthetic=study(change=exploring(2))).verdict == claims.FAILS


def test_a_bound_on_a_mean_is_kept_or_not():
    asked = {"policy": "acqb", "metric": "throughput", "bound": 0.71}
    claim = AHEAD | {"rule": "at_most", "with": asked}
    assert judged(claim, synthetic=study()).verdict == claims.HOLDS
    low = claim | {"with": asked | {"bound": 0.1}}
    assert judged(low, synthetic=study()).verdict == claims.FAILS


SLOPE = {"tables": ["theory_slopes"], "where": {"policy": "acqb"}, "column": "slope"}


def tabled(tables, **asked):
    return judged({"id": "planted", "rule": "tabled", "with": SLOPE | asked}, tables)


def test_theory_is_judged_by_its_tables(tmp_path):
    assert tabled(tmp_path, at_most=0.5).verdict == claims.NOT_RUN
    frame = pl.DataFrame({
        "policy": ["acqb", "random", "acqb"], "slope": [0.52, 0.98, None],
        "slope_low": [0.47, 0.97, None], "slope_high": [0.57, 0.99, None], "seeds": [200, 200, 9],
    })  # fmt: skip
    frame.write_csv(tmp_path / "theory_slopes.csv")
    held = tabled(tmp_path, at_most=0.5)
    assert (held.verdict, held.n) == (claims.HOLDS, 200) and "[0.47, 0.57]" in held.evidence
    assert tabled(tmp_path, at_most=0.4).verdict == claims.FAILS
    assert tabled(tmp_path, at_least=0.6).verdict == claims.FAILS
    assert tabled(tmp_path, equals=0).verdict == claims.FAILS
    assert tabled(tmp_path, where={"nothing": 1}, equals=0).verdict == claims.NOT_RUN


def test_a_rule_of_a_lemma_that_failed_once_does_not_hold(tmp_path):
    counts = pl.DataFrame({"rule": ["a", "b"], "checked": [9000, 70], "failed": [0, 1]})
    counts.write_csv(tmp_path / "theory_slopes.csv")
    asked = {"column": "failed", "of": "checked", "equals": 0}
    held = tabled(tmp_path, where={"rule": "a"}, **asked)
    assert held.verdict == claims.HOLDS and "0 of 9,000" in held.evidence
    assert tabled(tmp_path, where={"rule": "b"}, **asked).verdict == claims.FAILS


def test_what_should_rise_does_so_in_every_setting(tmp_path):
    frame = pl.DataFrame({
        "policy": "acqb", "parameters": ["shared"] * 3 + ["disjoint"] * 3,
        "round": [30, 300, 3000] * 2, "slope": [1.0, 2.0, 3.0, 1.0, 3.0, 2.0],
    })  # fmt: skip
    frame.write_csv(tmp_path / "theory_slopes.csv")
    judgement = tabled(tmp_path, rises=True)
    assert judgement.verdict == claims.IN_PART and "in 3 of 4" in judgement.evidence
    frame.head(3).write_csv(tmp_path / "theory_slopes.csv")
    assert tabled(tmp_path, rises=True).verdict == claims.HOLDS


def test_printed_values_are_judged_by_the_comparison():
    row = dict.fromkeys(comparison.COLUMNS) | {
        "dataset": "WildChat-1M", "round": 25000, "policy": "acqb", "statistic": "gap_mean",
        "paper": 2.4, "ours": 2.0, "allowed": 1.0, "inside": True, "study": "wildchat", "seeds": 30,
    }  # fmt: skip
    (claim,) = [one for one in claims.read() if one["id"] == "wildchat-values"]
    inside = pl.DataFrame([row], schema=comparison.COLUMNS)
    assert claims.judge(claim, {}, inside, REPOSITORY).verdict == claims.HOLDS
    outside = pl.DataFrame([row | {"ours": 9.0, "inside": False}], schema=comparison.COLUMNS)
    assert claims.judge(claim, {}, outside, REPOSITORY).verdict == claims.FAILS


def test_the_papers_own_table_is_ranked_too():
    (claim,) = [one for one in claims.read() if one["id"] == "lowest-gap"]
    judgement = claims.judge(claim, {}, NOTHING, REPOSITORY)
    assert "ACQB-CL is first in 6 of 6 settings" in judgement.evidence


def test_an_unknown_rule_is_refused():
    with pytest.raises(ValueError, match="claim planted has rule guess; choose from ahead"):
        judged(AHEAD | {"rule": "guess"})


def test_all_claims_are_judged_in_the_order_of_the_text(tmp_path):
    frame = claims.judge_all({"synthetic": study()}, NOTHING, tmp_path)
    assert frame.columns == list(claims.COLUMNS) and frame.height == len(claims.read())
    assert frame["line"].is_sorted() and set(frame["verdict"]) <= set(claims.VERDICTS)
    assert frame["evidence"].str.len_chars().min() > 10


def test_tests_that_prove_a_claim_are_there():
    for one in claims.read():
        for name in one.get("with", {}).get("tests", ()):
            path, _, test = name.partition("::")
            assert f"def {test}(" in (REPOSITORY / path).read_text(), name


def test_acqb_is_configured_without_horizon_and_slackness():
    constants = [
        OmegaConf.to_container(
            composed("policy=[acqb]", f"horizon={horizon}", f"slackness={slackness}").policy.acqb,
            resolve=True,
        )
        for horizon, slackness in ((500, 0.01), (5000, 0.2))
    ]
    assert constants[0] == constants[1]


def test_cqb_eps_is_configured_with_the_horizon():
    lengths = [
        composed("policy=[cqb_eps]", f"horizon={t}").policy.cqb_eps.explore_rounds
        for t in (500, 5000)
    ]
    assert lengths == [50.0, 500.0]
