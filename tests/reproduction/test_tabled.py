"""Claims that tables decide: each bound holds where it should and is broken by a planted table."""

import numpy as np
import polars as pl

from reproduction.paper import claims, comparison
from reproduction.theory import slopes

SLOPE = {"tables": ["theory_slopes"], "where": {"policy": "acqb"}, "column": "slope"}


def judge_tables(tables, **asked):
    nothing = pl.DataFrame(schema=comparison.COLUMNS)
    claim = {"id": "planted", "rule": "tabled", "with": SLOPE | asked}
    return claims.judge(claim, {}, nothing, tables)


def test_theory_claims_are_judged_by_committed_tables(tmp_path):
    assert judge_tables(tmp_path, at_most=0.5).verdict == claims.NOT_RUN
    frame = pl.DataFrame({
        "policy": ["acqb", "random", "acqb"], "slope": [0.52, 0.98, None],
        "slope_low": [0.47, 0.97, None], "slope_high": [0.57, 0.99, None], "seeds": [200, 200, 9],
    })  # fmt: skip
    frame.write_csv(tmp_path / "theory_slopes.csv")
    held = judge_tables(tmp_path, at_most=0.5)
    assert (held.verdict, held.n) == (claims.HOLDS, 200) and "[0.47, 0.57]" in held.evidence
    assert judge_tables(tmp_path, at_most=0.4).verdict == claims.FAILS
    assert judge_tables(tmp_path, at_least=0.6).verdict == claims.FAILS
    assert judge_tables(tmp_path, equals=0).verdict == claims.FAILS
    assert judge_tables(tmp_path, where={"nothing": 1}, equals=0).verdict == claims.NOT_RUN


def test_rules_with_one_failure_do_not_hold(tmp_path):
    counts = pl.DataFrame({"rule": ["a", "b"], "checked": [9000, 70], "failed": [0, 1]})
    counts.write_csv(tmp_path / "theory_slopes.csv")
    asked = {"column": "failed", "of": "checked", "equals": 0}
    held = judge_tables(tmp_path, where={"rule": "a"}, **asked)
    assert held.verdict == claims.HOLDS and "0 of 9,000" in held.evidence
    assert judge_tables(tmp_path, where={"rule": "b"}, **asked).verdict == claims.FAILS


ROWS = {
    "policy": "acqb", "K": 1, "num_servers": 5, "slackness": 0.03, "parameters": "disjoint",
    "arrival_rate": 0.7, "seeds": 200,
}  # fmt: skip
WINDOWS = [(1_000, 10_000), (10_000, 100_000)]


def curve(grown):
    """Return the table of slopes that twenty seeds of a curve leave, each with a power of its own.

    They are apart by .01 or so to either side of the curve's.
    """
    rounds = np.arange(100, 100_001, 100)
    powers = 0.02 * np.linspace(-1, 1, 20)[:, None]
    rows = []
    for first, last in WINDOWS:
        here = (first < rounds) & (rounds <= last)
        values = (rounds[here] / 1e4) ** powers * grown(rounds[here].astype(float))
        slope, low, high, _ = slopes.fit(rounds[here], values, draws=200)
        ends = {"slope": slope, "slope_low": low, "slope_high": high}
        rows.append(ROWS | {"first": first, "last": last} | ends)
    return pl.DataFrame(rows)


def test_sublinear_is_refuted_by_linear_regret(tmp_path):
    curve(lambda t: t).write_csv(tmp_path / "theory_slopes.csv")
    assert judge_tables(tmp_path, below=1.0).verdict == claims.FAILS
    curve(lambda t: t**0.9).write_csv(tmp_path / "theory_slopes.csv")
    assert judge_tables(tmp_path, below=1.0).verdict == claims.HOLDS


def test_regret_slope_is_compared_with_the_slope_of_the_theorem(tmp_path):
    asked = {"at_most": "theorem", "dim": 5}
    curve(lambda t: t**0.5 * np.log(t)).write_csv(tmp_path / "theory_slopes.csv")
    held = judge_tables(tmp_path, **asked)
    assert held.verdict == claims.HOLDS and "the bound's 0.663" in held.evidence
    curve(lambda t: t**0.8).write_csv(tmp_path / "theory_slopes.csv")
    assert judge_tables(tmp_path, **asked).verdict == claims.FAILS
    # A shared parameter has five numbers in place of 25: the bound's slope is another.
    shared = curve(lambda t: t**0.66).with_columns(parameters=pl.lit("shared"))
    shared.write_csv(tmp_path / "theory_slopes.csv")
    assert judge_tables(tmp_path, **asked).verdict == claims.IN_PART


def test_convergence_claims_require_a_shrinking_distance(tmp_path):
    def verdict_at(*ends):
        rows = [
            {"policy": "acqb", "round": 10**i, "slope": sum(end) / 2, "slope_low": end[0],
             "slope_high": end[1]}
            for i, end in enumerate(ends)
        ]  # fmt: skip
        pl.DataFrame(rows).write_csv(tmp_path / "theory_slopes.csv")
        return judge_tables(tmp_path, nears=0).verdict

    assert verdict_at((5.0, 7.0), (-0.1, 0.3)) == claims.HOLDS
    assert verdict_at((80.0, 90.0), (50.0, 60.0), (0.2, 0.6)) == claims.HOLDS
    # It stays, however little; it comes no nearer in the end; it leaves zero again.
    assert verdict_at((0.4, 0.6), (0.3, 0.5)) == claims.FAILS
    assert verdict_at((9.0, 9.5), (1.0, 2.0), (1.5, 2.5)) == claims.FAILS
    assert verdict_at((-0.1, 0.1), (0.2, 0.4)) == claims.FAILS
    assert verdict_at((0.2, 0.4)) == claims.FAILS  # alone it must be there
