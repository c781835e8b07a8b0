"""Growth rates of curves: slopes on log-log axes, with intervals over seeds.

A window of rounds is cut into bins of equal width on the logarithmic axis. In each bin the curve is
averaged over rounds and seeds, and a straight line is fitted by least squares to the logarithms.
The interval is a bootstrap over seeds: whole runs are resampled, since the rounds of a run are not
independent.
"""

from collections.abc import Sequence

import numpy as np
import polars as pl
import xarray as xr

from cqbjax.core.labels import OPTIMAL
from cqbjax.results.summaries import queue_regret
from reproduction.theory import bounds

BINS_A_DECADE = 4
DRAWS = 2000
# Curve -> the slope of the paper's bound.
CURVES = {"regret": 0.5, "queue_regret": -0.25}


def curves(point: xr.Dataset) -> dict[str, xr.DataArray]:
    """Return cumulative regret and queue-length regret by policy, seed and round.

    Args:
        point: a stored result at one arrival rate.
    """
    others = point.sel(policy=[p for p in point.policy.values.tolist() if p != OPTIMAL])
    regrets = {"regret": others["regret"], "queue_regret": queue_regret(others)}
    return {name: values.transpose("policy", "seed", "round") for name, values in regrets.items()}


def average_bins(rounds: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Average a curve over bins of rounds that are equally wide on a logarithmic axis.

    A power of ten ends a bin: it belongs to the rounds before it.

    Args:
        rounds: [R] recorded rounds, increasing.
        values: [..., R].

    Returns:
        [G] the geometric mean of each bin's rounds, and [..., G]. Bins without a round are omitted.
    """
    number = np.ceil(BINS_A_DECADE * np.log10(rounds) - 1e-9).astype(int)
    starts = np.flatnonzero(np.diff(number, prepend=number[0] - 1))
    counts = np.diff(np.append(starts, len(rounds)))
    centres = np.exp(np.add.reduceat(np.log(rounds), starts) / counts)
    return centres, np.add.reduceat(values.astype(float), starts, axis=-1) / counts


def slope(rounds: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Return the least-squares slope of log mean against log rounds; NaN where a mean is not > 0.

    Args:
        rounds: [G].
        mean: [..., G].
    """
    at = np.log(rounds) - np.log(rounds).mean()
    logs = np.log(np.where(mean > 0, mean, np.nan))
    return (logs * at).sum(axis=-1) / (at @ at)


def fit(
    rounds: np.ndarray, values: np.ndarray, draws: int = DRAWS
) -> tuple[float, float, float, float]:
    """Fit one curve.

    Args:
        rounds: [R] of the window.
        values: [S, R] of every seed.
        draws: of the bootstrap.

    Returns:
        The slope, the ends of its 95% interval, and the share of draws in which the mean of some
        bin was not above 0. Such draws have no slope and do not count for the interval. The slope
        is NaN if the data themselves have such a bin.
    """
    at, by_seed = average_bins(rounds, values)
    generator = np.random.default_rng(0)
    weights = generator.multinomial(len(values), np.full(len(values), 1 / len(values)), draws)
    drawn = slope(at, weights @ by_seed / len(values))
    lost = float(np.isnan(drawn).mean())
    low, high = np.nanquantile(drawn, [0.025, 0.975]) if lost < 1 else (np.nan, np.nan)
    return float(slope(at, by_seed.mean(axis=0))), float(low), float(high), lost


def bound_slope(constants: bounds.Constants, first: int, last: int) -> float:
    """Return the slope of Theorem 6's own bound over a window, binned as the curves are.

    sqrt(t) with its logarithms is steeper than 1/2 at any finite t. The constants matter little:
    they are factors of the whole bound, except for the cost of exploration.

    Args:
        constants: of the bound.
        first: the window's rounds are first < t <= last.
        last: likewise.
    """
    rounds = np.linspace(first, last, 1001)[1:]
    bound = np.array([bounds.regret_bound(constants, float(t)) for t in rounds])
    return float(slope(*average_bins(rounds, bound)))


def table(points: Sequence[xr.Dataset], windows: Sequence[Sequence[int]]) -> pl.DataFrame:
    """Fit every curve of stored points over every window of rounds.

    Args:
        points: as `results.load_points` returns them.
        windows: (first, last) of each: its rounds are first < t <= last.

    Returns:
        By setting, curve (`statistic`), window and policy: `slope` with its interval _low and
        _high, `bound`, the exponent of the paper's bound, `lost`, as in `fit`, and the curve's mean
        over seeds in the window's last bin.

    Raises:
        ValueError: a window has fewer than two recorded bins.
    """
    rows = []
    for point in points:
        keys = ("K", "num_servers", "slackness", "parameters")
        setting = {key: point.attrs[key] for key in keys if key in point.attrs}
        cells = [
            (rate, statistic, values, *window)
            for rate in point.arrival_rate.values.tolist()
            for statistic, values in curves(point.sel(arrival_rate=rate)).items()
            for window in windows
        ]
        for rate, statistic, values, first, last in cells:
            here = values.sel(round=slice(first + 1, last))
            rounds = here["round"].values
            if average_bins(rounds, rounds)[0].size < 2:
                what = f"too few rounds are recorded in {first} .. {last} for a slope"
                raise ValueError(f"kind.windows: {what}; lower record_every or widen the window")
            for label, by_seed in zip(here.policy.values.tolist(), here.values, strict=True):
                estimate, low, high, lost = fit(rounds, by_seed)
                rows.append(setting | {
                    "arrival_rate": rate, "statistic": statistic, "first": first, "last": last,
                    "policy": label, "seeds": len(by_seed), "slope": estimate, "slope_low": low,
                    "slope_high": high, "bound": CURVES[statistic], "lost": lost,
                    "mean_at_end": float(average_bins(rounds, by_seed)[1].mean(axis=0)[-1]),
                })  # fmt: skip
    fitted = pl.col("slope", "slope_low", "slope_high")
    return pl.DataFrame(rows).with_columns(fitted.fill_nan(None))
