"""Extracts of studies, committed instead of arrays: enough for figures, tables and verdicts.

An extract is a folder of four files. `curves.parquet` holds the figure's lines at about a hundred
rounds, `numbers.parquet` the values of policies at the rounds of the table, `paired.parquet` the
differences to a reference policy seed by seed, and `study.json` what ran. Means come with the
standard deviation between seeds and the number of seeds, from which intervals follow.
"""

import functools
import json
from collections.abc import Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
import yaml

from cqbjax.core.files import write_atomic
from cqbjax.results import frame as frames
from cqbjax.results.files import StoredPoint
from cqbjax.results.metrics import STANDARD, Metric, find_recorded, list_panels
from cqbjax.results.policy_styles import OTHERWISE
from cqbjax.results.summaries import join_stand_ins

MOST_ROUNDS = 100  # of a curve; a panel is some 400 pixels wide
DIGITS = 4  # of a curve's numbers: more cannot be seen, and would not compress
REFERENCES = ("acqb", "acqb_cl")  # the paper's own policies: the others are compared with them
# Attributes of a point that describe its setting.
SETTING = ("K", "num_servers", "slackness", "parameters", *OTHERWISE, "yardstick")
# Metrics that a table or a claim may read at a round.
NUMBERS = ("gap", "queue_length", "regret", "throughput", "explored")
FRAMES = ("curves", "numbers", "paired")
NOTES = "study.json"
# Keys of a configuration that determine the numbers; folders of the machine are not among them.
CONFIG_KEYS = ("num_seeds", "first_seed", "horizon", "explore_rounds", "policy")


class ExtractError(ValueError):
    """A file of an extract is missing or is not valid."""


class Extract(NamedTuple):
    """A study, summarised.

    Attributes:
        notes: name, title, source, stand_in, provenance, horizon, rounds (of the table), queue
            (the metric of the left panel: `gap` or `queue_length`), drawn (labels of the figure;
            all if empty), and `points`: the setting, rates, seeds and manifest of each.
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
        stored: its points, as `results.stored_points` returns them, with all their rounds.
        config: of the study: `title, figure_policies, queue, table_rounds` are read.

    Raises:
        ValueError: there is no point.
    """
    points = [one.point for one in stored]
    own, attributes = find_recorded(points), points[0].attrs
    horizon = min(int(point.attrs["horizon"]) for point in points)
    rounds = sorted({min(int(t), horizon) for t in config["table_rounds"]})
    panels, name = list_panels(points, config), str(attributes["experiment"])
    notes = {
        "name": name, "title": config.get("title") or name, "source": str(attributes["source"]),
        "stand_in": join_stand_ins(points), "provenance": str(attributes["provenance"]),
        "horizon": horizon, "rounds": rounds, "panels": panels,
        "drawn": list(config.get("figure_policies") or []),
        "points": [_describe(one) for one in stored],
    }  # fmt: skip
    if own:
        notes["metrics"] = {
            name: {"long_name": one.long_name, "units": one.units, "better": one.better}
            | ({"share": True} if one.share else {})
            for name, one in own.items()
        }
    values = frames.tabulate_runs(points, [*NUMBERS, *own], rounds)
    grown = frames.tabulate_growth(points, "gap", rounds).drop("since")
    values = pl.concat([values, grown.with_columns(metric=pl.lit("gap_growth"))])
    paired = pl.concat(
        frames.subtract_policies(values, policy).with_columns(reference=pl.lit(policy))
        for policy in REFERENCES
    )
    lines = frames.summarise(frames.tabulate_curves(points, panels, MOST_ROUNDS)).with_columns(
        pl.col("mean", "sd").round_sig_figs(DIGITS)
    )
    seconds = frames.tabulate_runs(points, ["seconds_per_round"], rounds)
    numbers = frames.summarise(pl.concat([values, seconds]))
    # The ends of intervals follow from the rest.
    tables = (frame.drop("low", "high") for frame in (lines, numbers, frames.summarise(paired)))
    return Extract(notes, *tables)


def write(made: Extract, folder: Path) -> list[Path]:
    """Write an extract's four files, each atomically; return them."""
    written = [folder / NOTES]
    write_atomic(written[0], (json.dumps(made.notes, indent=1, sort_keys=True) + "\n").encode())
    for name in FRAMES:
        written.append(folder / f"{name}.parquet")
        zstd: Any = functools.partial(getattr(made, name).write_parquet, compression_level=19)
        write_atomic(written[-1], zstd)
    return written


def read(folder: Path) -> Extract:
    """Read an extract.

    Raises:
        ExtractError: a file is missing or cannot be read.
    """
    try:
        notes = json.loads((folder / NOTES).read_text())
        tables = {name: pl.read_parquet(folder / f"{name}.parquet") for name in FRAMES}
    except (OSError, ValueError, pl.exceptions.PolarsError) as error:
        raise ExtractError(f"{folder} is no extract of a study: {error}") from error
    return Extract(notes, **tables)


def read_all(folder: Path) -> dict[str, Extract]:
    """Read the extracts below a folder, by name; an empty dict if the folder does not exist."""
    return {path.parent.name: read(path.parent) for path in sorted(folder.glob(f"*/{NOTES}"))}


def add_metrics(notes: Mapping[str, Mapping[str, Any]]) -> dict[str, Metric]:
    """Return the standard metrics, and those that the notes of an extract describe."""
    return STANDARD | {name: Metric(itemgetter(name), **words) for name, words in notes.items()}


def _describe(one: StoredPoint) -> dict[str, Any]:
    """Return the description of a point, without folders of the machine."""
    point = one.point
    config = yaml.safe_load(one.config) if one.config else {}
    return {
        "name": one.manifest.get("point", ""),
        "setting": {key: point.attrs[key] for key in SETTING if point.attrs.get(key, "") != ""},
        "varied": one.manifest.get("varied", {}),
        "rates": [float(rate) for rate in point["arrival_rate"].values],
        "seeds": int(point.sizes["seed"]),
        "config": {key: config[key] for key in CONFIG_KEYS if key in config},
        "manifest": one.manifest,
    }
