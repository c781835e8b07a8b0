"""What is committed of a study in place of its arrays: enough to draw it, tabulate it and judge it.

An extract is a folder of four files. `curves.parquet` holds the figure's lines at about a hundred
rounds, `numbers.parquet` what policies reached at the rounds of the table, `paired.parquet` how far
they are from a reference policy seed by seed, and `study.json` what ran. Means come with the
standard deviation between seeds and the number of seeds, from which intervals follow.
"""

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import xarray as xr

from cqbjax.core.files import write_atomic
from cqbjax.core.labels import OPTIMAL
from cqbjax.results.cells import Cells, side_by_side
from cqbjax.results.summaries import mean_sd, queue_regret, stand_in_of, throughput
from cqbjax.store.shards import RUN_DIMS, Stored, more

MOST_ROUNDS = 100  # of a curve; a panel is some 400 pixels wide
DIGITS = 4  # of a curve's numbers: more cannot be seen, and would not compress
REFERENCES = ("acqb", "acqb_cl")  # the paper's own policies: what the others are compared with
CURVES = ("gap", "queue_length", "regret")
# What is said of every point, where it says it.
SETTING = ("K", "num_servers", "slackness", "parameters", "arrivals")
PAIRED = {
    "point": pl.Int64, "arrival_rate": pl.Float64, "round": pl.Int64, "policy": pl.String,
    "metric": pl.String, "reference": pl.String, "n": pl.Int64, "mean": pl.Float64,
    "sd": pl.Float64,
}  # fmt: skip
FRAMES = ("curves", "numbers", "paired")
NOTES = "study.json"
# Of a configuration: what the numbers follow from, and no folder of the machine.
TOLD = ("num_seeds", "first_seed", "horizon", "explore_rounds", "policy")


class ExtractError(ValueError):
    """Report an extract that is missing a file, or is not one."""


class Extract(NamedTuple):
    """A study, summarised.

    Attributes:
        notes: name, title, source, stand_in, horizon, rounds (of the table), queue (what the left
            panel shows: `gap` or `queue_length`), recorded (name -> units, long_name and better of
            what was recorded beside what always is, if anything), drawn (labels of the figure; all
            if empty), replay, and `points`: the setting, rates, seeds and manifest of each.
        curves: a row a point, arrival_rate, policy, metric and round: n (seeds), mean, sd.
        numbers: the same at the rounds of the table, of more metrics.
        paired: the same for `reference` less `policy`, seed by seed: n, mean, sd.
    """

    notes: dict[str, Any]
    curves: pl.DataFrame
    numbers: pl.DataFrame
    paired: pl.DataFrame


def extract(stored: Sequence[Stored], config: Mapping[str, Any]) -> Extract:
    """Summarise a study.

    Args:
        stored: its points, as `results.stored_points` returns them, all rounds of them.
        config: of the study: `title, figure_policies, queue, table_rounds, replay` are read.

    Raises:
        ValueError: no point.
    """
    points = [one.point.assign_attrs(point=number) for number, one in enumerate(stored)]
    horizon = min(int(point.attrs["horizon"]) for point in points)
    rounds = sorted({min(int(t), horizon) for t in config["table_rounds"]})
    replay = config.get("replay") is not None
    # A replay's figure is of the gap and of the length: with one server nothing is to be regretted.
    panels = ["gap", "queue_length"] if replay else [_queue(config), "regret"]
    by_round, by_run = more(points[0]), more(points[0], RUN_DIMS[:-1])
    recorded = {name: dict(points[0][name].attrs) for name in (*by_round, *by_run)}
    panels += by_round
    notes = {
        "name": str(points[0].attrs["experiment"]),
        "title": config.get("title") or str(points[0].attrs["experiment"]),
        "source": str(points[0].attrs["source"]),
        "stand_in": stand_in_of(points),
        "horizon": horizon,
        "rounds": rounds,
        "panels": panels,
        **({"recorded": recorded} if recorded else {}),
        "drawn": list(config.get("figure_policies") or []),
        "replay": replay,
        "points": [_note(one) for one in stored],
    }
    curves = pl.DataFrame([row for p in points for row in _curves(p, panels)])
    numbers, paired = list[dict[str, Any]](), list[dict[str, Any]]()
    for some in side_by_side(points, rounds):
        values = _metrics(some, points)
        for name, by_seed in values.items():
            numbers += _rows(some, {"metric": name}, by_seed)
            for reference in REFERENCES:
                if reference in some.policies and "seed" in by_seed.dims:
                    apart = by_seed.sel(policy=reference, drop=True) - by_seed
                    paired += _rows(some, {"metric": name, "reference": reference}, apart)
    return Extract(notes, curves, pl.DataFrame(numbers), _paired(paired))


def write(made: Extract, folder: Path) -> list[Path]:
    """Write an extract's four files, each whole or not at all; return them."""
    written = [folder / NOTES]
    write_atomic(written[0], (json.dumps(made.notes, indent=1, sort_keys=True) + "\n").encode())
    for name in FRAMES:
        buffer, path = io.BytesIO(), folder / f"{name}.parquet"
        getattr(made, name).write_parquet(buffer, compression="zstd", compression_level=19)
        write_atomic(path, buffer.getvalue())
        written.append(path)
    return written


def read(folder: Path) -> Extract:
    """Read an extract.

    Raises:
        ExtractError: a file is missing or cannot be read.
    """
    try:
        notes = json.loads((folder / NOTES).read_text())
        frames = {name: pl.read_parquet(folder / f"{name}.parquet") for name in FRAMES}
    except (OSError, ValueError, pl.exceptions.PolarsError) as error:
        raise ExtractError(f"{folder} is no extract of a study: {error}") from error
    return Extract(notes, **frames)


def read_all(folder: Path) -> dict[str, Extract]:
    """Read the extracts below a folder, by name; none where there is no such folder."""
    return {path.parent.name: read(path.parent) for path in sorted(folder.glob(f"*/{NOTES}"))}


def with_interval(frame: pl.DataFrame, level: float = 0.95) -> pl.DataFrame:
    """Add low and high, Student's t interval of the mean; null for a single seed."""
    from scipy.special import stdtrit

    n = frame["n"].to_numpy()
    quantile = stdtrit(np.maximum(n - 1, 1), (1 + level) / 2)
    half = quantile * frame["sd"].cast(pl.Float64).to_numpy() / np.sqrt(np.maximum(n, 1))
    half = np.where(n > 1, half, np.nan)
    mean = frame["mean"].to_numpy()
    return frame.with_columns(
        low=pl.Series(mean - half).fill_nan(None), high=pl.Series(mean + half).fill_nan(None)
    )


def _paired(rows: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    """Return the paired rows but those of a reference itself; there may be none."""
    frame = pl.DataFrame(rows, schema=PAIRED)
    return frame.filter(pl.col("policy") != pl.col("reference"))


def _queue(config: Mapping[str, Any]) -> str:
    return "queue_length" if config.get("queue") == "length" else "gap"


def _note(one: Stored) -> dict[str, Any]:
    """Return what is said of a point: no folder of the machine that it ran on."""
    import yaml

    point = one.point
    config = yaml.safe_load(one.config) if one.config else {}
    return {
        "name": one.manifest.get("point", ""),
        "setting": {key: point.attrs[key] for key in SETTING if point.attrs.get(key, "") != ""},
        "varied": one.manifest.get("varied", {}),
        "rates": [float(rate) for rate in point["arrival_rate"].values],
        "seeds": int(point.sizes["seed"]),
        "config": {key: config[key] for key in TOLD if key in config},
        "manifest": one.manifest,
    }


def _curves(point: xr.Dataset, panels: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the rows of a point's curves."""
    recorded = point.sizes["round"]
    kept = np.unique(
        np.linspace(0, recorded - 1, min(recorded, MOST_ROUNDS)).round().astype(np.int64)
    )
    thin = point.isel(round=kept)
    for metric in panels:
        values = queue_regret(thin) if metric == "gap" else thin[metric]
        if metric == "queue_length":
            # The optimal policy's line too: it runs in every sweep, shown or not.
            best = thin["optimal_queue_length"].expand_dims(policy=[OPTIMAL])
            others = [label for label in values["policy"].values if label != OPTIMAL]
            values = xr.concat([values.sel(policy=others), best], "policy")
        else:
            values = values.sel(policy=[x for x in values["policy"].values if x != OPTIMAL])
        summary = mean_sd(values).transpose("arrival_rate", "policy", "round")
        mean, sd = (_rounded(summary[name].values) for name in ("mean", "sd"))
        for i, rate in enumerate(summary["arrival_rate"].values.tolist()):
            for j, label in enumerate(summary["policy"].values.tolist()):
                for k, t in enumerate(summary["round"].values.tolist()):
                    yield {
                        "point": point.attrs["point"], "arrival_rate": rate, "policy": label,
                        "metric": metric, "round": t, "n": point.sizes["seed"],
                        "mean": mean[i, j, k], "sd": sd[i, j, k],
                    }  # fmt: skip


def _recorded(data: xr.Dataset) -> list[str]:
    """Return what else was recorded of a run, at the round or over all of it."""
    return more(data, ("point", *RUN_DIMS[:-1]))


def _rounded(values: np.ndarray) -> np.ndarray:
    """Round to `DIGITS` significant digits."""
    size = np.floor(np.log10(np.maximum(np.abs(values), 1e-12)))
    unit = 10.0 ** (size - DIGITS + 1)
    return np.round(values / unit) * unit


def _metrics(some: Cells, points: Sequence[xr.Dataset]) -> dict[str, xr.DataArray]:
    """Return what a table and a claim may ask for at a round, by point, policy, rate and seed."""
    same = [points[attributes["point"]] for attributes in some.attributes]
    first = int(same[0]["round"].values.min())
    half = next(side_by_side(same, [max(some.round // 2, first)]))
    gap = queue_regret(some.data).astype(float)
    return {
        "gap": gap,
        # How much the gap has grown since half the rounds: whether a policy has settled.
        "gap_growth": gap.drop_vars("round") - queue_regret(half.data).drop_vars("round"),
        "queue_length": some.data["queue_length"].astype(float),
        "regret": some.data["regret"].astype(float),
        "throughput": throughput(some.data),
        "explored": some.data["explored"].astype(float),
        "seconds_per_round": some.data["seconds_per_round"],
        **{name: some.data[name].astype(float) for name in _recorded(some.data)},
    }


def _rows(some: Cells, names: Mapping[str, str], values: xr.DataArray) -> Iterator[dict[str, Any]]:
    """Yield a row a point, rate and policy: mean and standard deviation between seeds."""
    seeds = values.sizes.get("seed", 1)
    spread = mean_sd(values) if "seed" in values.dims else {"mean": values, "sd": values * np.nan}
    means, sds = some.by_policy(spread["mean"]), some.by_policy(spread["sd"])
    for i, attributes in enumerate(some.attributes):
        for j, rate in enumerate(some.rates[i].tolist()):
            for k, label in enumerate(some.policies):
                yield {
                    "point": attributes["point"], "arrival_rate": rate, "round": some.round,
                    "policy": label, **names, "n": seeds, "mean": means[i][j][k],
                    "sd": sds[i][j][k],
                }  # fmt: skip
