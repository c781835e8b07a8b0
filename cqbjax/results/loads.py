"""The load that a policy bears: the arrival rates at which its queue stops growing."""

from collections.abc import Sequence

import polars as pl
import xarray as xr

from cqbjax.results.cells import LAST, Cells, side_by_side
from cqbjax.results.summaries import differing, mean_ci

# Queries a round by which a queue that is borne may still grow over the second half of a run.
GROWTH = 0.01


def loads(points: Sequence[xr.Dataset], growth: float = GROWTH) -> pl.DataFrame:
    """Read off the largest arrival rate that each policy bears.

    A rate is borne if the queue grows by at most `growth` queries a round over the second half of
    the run, in the mean over seeds: (Q(T) - Q(T/2)) / (T/2). A policy bears a load if it bears it
    and every smaller one that was run.

    Args:
        points: as `results.load_points` returns them, over several arrival rates.
        growth: in queries a round.

    Returns:
        By every other key in which points differ and policy: `rates`, how many were run, `borne`,
        the largest that is borne (null if the smallest is not), `next`, the smallest above it, and
        `growth`, `growth_low`, `growth_high` there, with its 95% interval over seeds.

    Raises:
        ValueError: no point, or a recorded half that there is none of.
    """
    keys = [key for key in differing(points) if key != "arrival_rate"]
    frame = pl.DataFrame(_growths(points, keys), infer_schema_length=None)
    by = [*keys, "policy"]
    rows = []
    for group in frame.sort("arrival_rate").partition_by(by, maintain_order=True):
        above = group.filter(pl.col("growth") > growth)
        first = above.row(0, named=True) if above.height else None
        rates = group["arrival_rate"]
        under = rates if first is None else rates.filter(rates < first["arrival_rate"])
        row = {key: group[key][0] for key in by}
        row |= {"rates": group.height, "borne": under.max() if under.len() else None}
        row["next"] = first and first["arrival_rate"]
        row |= {name: first and first[name] for name in ("growth", "growth_low", "growth_high")}
        rows.append(row)
    return pl.DataFrame(rows, infer_schema_length=None)


def _growths(points: Sequence[xr.Dataset], keys: Sequence[str]) -> list[dict[str, object]]:
    """Return a row a point, rate and policy: by how much its queue grew, queries a round."""
    half = int(points[0]["round"].values[-1]) // 2
    middle, end = (list(side_by_side(points, [t])) for t in (half, LAST))
    return [
        row for one, two in zip(middle, end, strict=True) for row in _rows(one, two, keys)
    ]  # fmt: skip


def _rows(middle: Cells, end: Cells, keys: Sequence[str]) -> list[dict[str, object]]:
    """Return the rows of points of one shape."""
    apart = (end.data["queue_length"] - middle.data["queue_length"]) / (end.round - middle.round)
    summary = mean_ci(apart)
    mean, low, high = (end.by_policy(summary[part]) for part in ("mean", "low", "high"))
    return [
        {key: attributes.get(key) for key in keys}
        | {"arrival_rate": rate, "policy": label}
        | {"growth": mean[i][j][k], "growth_low": low[i][j][k], "growth_high": high[i][j][k]}
        for i, attributes in enumerate(end.attributes)
        for j, rate in enumerate(end.rates[i].tolist())
        for k, label in enumerate(end.policies)
    ]
