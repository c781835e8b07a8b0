"""What is committed of a study in place of its arrays: enough to draw it, tabulate it and judge it.

An extract is a folder of four files. `curves.parquet` holds the figure's lines at about a hundred
rounds, `numbers.parquet` what policies reached at the rounds of the table, `paired.parquet` how far
they are from a reference policy seed by seed, and `study.json` what ran. Means come with the
standard deviation between seeds and the number of seeds, from which intervals follow.
"""

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import yaml

from cqbjax.core.files import write_atomic
from cqbjax.results.frame import against, curves, growth, long, summarised
from cqbjax.results.metrics import STANDARD, Metric, own_arrays, panels_of
from cqbjax.results.metrics import stored as stored_metric
from cqbjax.results.names import OTHERWISE
from cqbjax.results.points import StoredPoint
from cqbjax.results.summaries import stand_in_of

MOST_ROUNDS = 100  # of a curve; a panel is some 400 pixels wide
DIGITS = 4  # of a curve's numbers: more cannot be seen, and would not compress
REFERENCES = ("acqb", "acqb_cl")  # the paper's own policies: what the others are compared with
# What is said of every point, where it says it.
SETTING = (
    "K", "num_servers", "slackness", "parameters", *OTHERWISE, "yardstick",
)  # fmt: skip
# What a table and a claim may ask for at a round.
NUMBERS = ("gap", "queue_length", "regret", "throughput", "explored")
FRAMES = ("curves", "numbers", "paired")
NOTES = "study.json"
# Of a configuration: what the numbers follow from, and no folder of the machine.
TOLD = ("num_seeds", "first_seed", "horizon", "explore_rounds", "policy")


class ExtractError(ValueError):
    """Report an extract that is missing a file, or is not one."""


class Extract(NamedTuple):
    """A study, summarised.

    Attributes:
        notes: name, title, source, stand_in, provenance, horizon, rounds (of the table), queue
            (what the left panel shows: `gap` or `queue_length`), drawn (labels of the figure; all
            if empty), and `points`: the setting, rates, seeds and manifest of each.
        curves: a row a point, arrival_rate, policy, metric and round: n (seeds), mean, sd.
        numbers: the same at the rounds of the table, of more metrics.
        paired: the same for `reference` less `policy`, seed by seed: n, mean, sd.
    """

    notes: dict[str, Any]
    curves: pl.DataFrame
    numbers: pl.DataFrame
    paired: pl.DataFrame


def extract(stored: Sequence[StoredPoint], config: Mapping[str, Any]) -> Extract:
    """Summarise a study.

    Args:
        stored: its points, as `results.stored_points` returns them, all rounds of them.
        config: of the study: `title, figure_policies, queue, table_rounds` are read.

    Raises:
        ValueError: no point.
    """
    points = [one.point for one in stored]
    own = own_arrays(points)
    horizon = min(int(point.attrs["horizon"]) for point in points)
    rounds = sorted({min(int(t), horizon) for t in config["table_rounds"]})
    panels = panels_of(points, config)
    said = points[0].attrs
    notes = {
        "name": str(said["experiment"]), "title": config.get("title") or str(said["experiment"]),
        "source": str(said["source"]), "stand_in": stand_in_of(points),
        "provenance": str(said["provenance"]), "horizon": horizon, "rounds": rounds,
        "panels": panels, "drawn": list(config.get("figure_policies") or []),
        "points": [_note(one) for one in stored],
    }  # fmt: skip
    if own:
        notes["metrics"] = {
            name: {"long_name": one.long_name, "units": one.units, "better": one.better}
            | ({"share": True} if one.share else {})
            for name, one in own.items()
        }
    values = long(points, [*NUMBERS, *own], rounds)
    grown = growth(points, "gap", rounds).with_columns(metric=pl.lit("gap_growth")).drop("since")
    values = pl.concat([values, grown])
    paired = pl.concat(
        against(values, policy).with_columns(reference=pl.lit(policy)) for policy in REFERENCES
    )
    lines = summarised(curves(points, panels, MOST_ROUNDS)).with_columns(
        pl.col("mean", "sd").map_batches(_rounded)
    )
    numbers = summarised(pl.concat([values, long(points, ["seconds_per_round"], rounds)]))
    ends = ("low", "high")  # follow from the rest
    return Extract(notes, lines.drop(ends), numbers.drop(ends), summarised(paired).drop(ends))


def write(made: Extract, folder: Path) -> list[Path]:
    """Write an extract's four files, each whole or not at all; return them."""
    written = [folder / NOTES]
    write_atomic(written[0], (json.dumps(made.notes, indent=1, sort_keys=True) + "\n").encode())
    for name in FRAMES:
        written.append(folder / f"{name}.parquet")
        packed = functools.partial(
            getattr(made, name).write_parquet, compression="zstd", compression_level=19
        )
        write_atomic(written[-1], packed)
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


def described(notes: Mapping[str, Mapping[str, Any]]) -> dict[str, Metric]:
    """Return the standard metrics, and those that an extract describes."""
    return STANDARD | {name: Metric(stored_metric(name), **words) for name, words in notes.items()}


def _note(one: StoredPoint) -> dict[str, Any]:
    """Return what is said of a point: no folder of the machine that it ran on."""
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


def _rounded(column: pl.Series) -> pl.Series:
    """Round to `DIGITS` significant digits."""
    values = column.to_numpy()
    size = np.floor(np.log10(np.maximum(np.abs(values), 1e-12)))
    unit = 10.0 ** (size - DIGITS + 1)
    return pl.Series(np.round(values / unit) * unit).fill_nan(None)
