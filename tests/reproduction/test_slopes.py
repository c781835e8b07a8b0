"""Slopes: known powers, intervals that cover, curves that have none."""

import numpy as np
import pytest
import xarray as xr
from composing import compose_config
from fabricated import fabricate
from rich.console import Console

from cqbjax.cli._instantiate import make
from cqbjax.experiments import display, study_types
from reproduction.theory import slopes

ROUNDS = np.arange(10, 10_001, 10)


def powers(exponent: float, noise: float, seeds: int, draw: int) -> np.ndarray:
    """Return curves whose mean is 3 t^exponent, each seed with a level of its own."""
    level = 1 + noise * np.random.default_rng(draw).normal(size=(seeds, 1))
    return 3.0 * level * ROUNDS**exponent


@pytest.mark.parametrize("exponent", [0.5, -0.25, 1.0, -2.0])
def test_slopes_of_power_laws_are_recovered(exponent):
    # Bins average over rounds: exact up to the rounds in the first bins, which are few.
    estimate, low, high, lost = slopes.fit(ROUNDS[50:], powers(exponent, 0.1, 30, 0)[:, 50:])
    assert estimate == pytest.approx(exponent, abs=0.02) and lost == 0
    assert low <= estimate <= high


def test_slope_intervals_have_nominal_coverage():
    covered = 0
    for draw in range(60):
        generator = np.random.default_rng(draw)
        # Seeds part as a random walk's would, and have mean one.
        spread = 0.5 * np.linspace(0, 1, len(ROUNDS))
        noise = np.exp(spread * generator.normal(size=(40, 1)) - spread**2 / 2)
        values = ROUNDS**0.5 * noise
        truth = slopes.slope(*slopes.average_bins(ROUNDS, ROUNDS**0.5))
        _, low, high, _ = slopes.fit(ROUNDS, values, draws=300)
        covered += low <= truth <= high
    # 57 of 60 expected; fewer than 50 would be odd even for a bootstrap of forty seeds.
    assert covered >= 50


def test_nonpositive_curves_have_no_slope_and_are_counted():
    values = powers(0.5, 0.0, 4, 0)
    assert np.isnan(slopes.fit(ROUNDS, -values)[0]) and slopes.fit(ROUNDS, -values)[3] == 1
    values[0] *= -2  # one seed in four: some draws have it twice, and no mean above 0
    estimate, low, high, lost = slopes.fit(ROUNDS, values)
    assert estimate == pytest.approx(0.5, abs=0.05) and 0.05 < lost < 0.6 and low <= high


def test_bins_hold_every_round_once_and_end_at_powers_of_ten():
    rounds = np.arange(1, 10_001)
    at, means = slopes.average_bins(rounds, rounds)
    ends = np.append(0, np.floor(10 ** (np.arange(17) / slopes.BINS_A_DECADE) + 1e-9)).astype(int)
    ends = np.unique(ends)
    expected = [rounds[low:high].mean() for low, high in zip(ends, ends[1:], strict=False)]
    np.testing.assert_allclose(means, expected)
    assert 1000 in ends and (np.diff(at) > 0).all() and (at <= means).all()


@pytest.mark.slow
def test_a_study_of_slopes_is_shown_with_its_tables(tmp_path):
    words = ("name=made", "kind=slopes", "kind.windows=[[6,30],[30,60]]", "table_rounds=[60]")
    config = compose_config(*words, f"results_dir={tmp_path}", "table=gap")
    points = [fabricate(("optimal", "acqb", "cqb_eps"), num_seeds=12)]
    shown = study_types.make_study_type(config, make).show(points, config)
    written = display.write_output(shown, config, "made", Console(quiet=True))
    names = {path.relative_to(tmp_path).as_posix() for path in written}
    assert {"tables/made_slopes.csv", "tables/made.md"} <= names
    assert all(path.stat().st_size > 0 for path in written)
    frame = slopes.table(points, [[6, 30], [30, 60]])
    assert frame.height == 2 * 2 * 2 and set(frame["policy"]) == {"acqb", "cqb_eps"}
    regret = frame.filter(statistic="regret")
    assert (regret["slope"] > 0).all() and (regret["bound"] == 0.5).all()
    with pytest.raises(ValueError, match="kind.windows: too few rounds"):
        slopes.table(points, [[59, 60]])


def test_slope_windows_exclude_their_first_round():
    point = fabricate(("acqb",), num_seeds=2, horizon=100)
    grown = np.sqrt(point["round"].values)
    grown[9] = 1e6
    point["regret"] = point["regret"] * 0 + xr.DataArray(grown, dims="round")
    (row,) = slopes.table([point], [(10, 100)]).filter(statistic="regret").to_dicts()
    assert row["slope"] == pytest.approx(0.5, abs=0.01)
    assert (row["first"], row["last"], row["bound"]) == (10, 100, 0.5)
