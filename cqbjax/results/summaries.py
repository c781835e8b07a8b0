"""Summaries of stored results: paired differences, intervals over seeds, points combined.

Pure functions on datasets. Seeds are the units of replication: intervals are Student's t over
seeds. Policies are compared seed by seed, because all policies of a seed have the same arrivals,
contexts and choice uniforms.
"""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from cqbjax.core.inputs import is_number
from cqbjax.results.files import RUN_DIMS
from cqbjax.results.policy_styles import OTHERWISE

# Attributes that become a dimension if points differ in them, whether or not they were swept.
ALWAYS_VARIED = ("K", "num_servers", "slackness", "parameters")
# Differences up to this one are rounding errors.
ROUNDING = 1e-12
# How datasets are concatenated: missing values are NaN, and integers are then float64.
_JOIN: dict[str, Any] = {
    "data_vars": "all", "coords": "minimal", "compat": "override", "join": "outer",
    "combine_attrs": "drop_conflicts",
}  # fmt: skip
# What must be recorded beside the queue to count all arrivals, by model; of other models, all.
LEAVING = ("gave_up", "away", "in_service")
OUTSIDE_QUEUE: dict[str, tuple[str, ...]] = {
    "impatient": ("gave_up",), "orbit": ("away",), "rounds": ("in_service",),
    **dict.fromkeys(("count", "late", "lost", "outages", "prices"), ()),
}  # fmt: skip


def queue_regret(ds: xr.Dataset) -> xr.DataArray:
    """Subtract the oracle's queue length under the same draws from that of each policy.

    Args:
        ds: holds queue_length [policy, arrival_rate, seed, round] and optimal_queue_length without
            policy, in queries.

    Returns:
        Q(t+1) - Q*(t+1) after round t, in queries, with the dimensions of queue_length. Its mean
        over seeds estimates the paper's queue length regret.
    """
    return (ds["queue_length"] - ds["optimal_queue_length"]).rename("queue_regret")


def add_time_per_arrival(point: xr.Dataset) -> xr.Dataset:
    """Add `time_per_arrival`: mean rounds in the system so far, over all queries that arrived.

    Unlike `time_mean` it counts queries that were abandoned or are still in the system, so a policy
    that leaves queries unserved does not look quick. It is exact if every round is recorded; else
    the number in the system between two recorded rounds is taken from the earlier one.

    Args:
        point: with `departures` and `queue_length` over `round`.

    Returns:
        The point with `time_per_arrival`; without it if the point has no `time_mean`, or lacks one
        of `gave_up`, `away` and `in_service` that its dynamics make necessary.
    """
    text = " and ".join(str(point.attrs.get(key, "")) for key in ("users", "service"))
    models = re.findall(r"(?:^| and )(\w+)", text) + ["log"] * ("singletons" in point.attrs)
    needed = {name for model in models for name in OUTSIDE_QUEUE.get(model, LEAVING)}
    if "time_mean" not in point or not needed <= {*point}:
        return point
    present: Any = sum(point[n] for n in ("queue_length", "away", "in_service") if n in point)
    left, waited = point["departures"], point["round"].diff("round", label="lower")
    if "gave_up" in point:
        left = left / (1 - point["gave_up"].fillna(0))
    total, arrivals = (present * waited).sum("round"), (left + present).isel(round=-1, drop=True)
    mean = (total / arrivals).astype(np.float32)
    words = {"units": "rounds", "long_name": "Time in system of all arrivals", "better": "less"}
    return point.assign(time_per_arrival=mean.assign_attrs(words))


def throughput(ds: xr.Dataset) -> xr.DataArray:
    """Divide the departures so far by the rounds so far: queries per round."""
    return (ds["departures"] / ds["round"]).rename("throughput")


def mean_ci(
    da: xr.DataArray, dim: str = "seed", level: float = 0.95, share: bool = False
) -> xr.Dataset:
    """Average over seeds, with the interval of the mean: Student's t, or Wilson's for shares.

    Args:
        da: any array with `dim`; NaN entries (combinations that were not run) are not counted.
        dim: the dimension of independent replications.
        level: the interval's coverage, in (0, 1).
        share: whether every value lies in [0, 1]; see `share_interval`.

    Returns:
        mean, low and high over the other dimensions; low and high are NaN for a single seed.

    Raises:
        ValueError: `level` is outside (0, 1) or `dim` is not a dimension of `da`.
    """
    if not 0 < level < 1:
        raise ValueError(f"level is {level}: a coverage between 0 and 1 is needed, such as 0.95.")
    if dim not in da.dims:
        raise ValueError(f"dim is {dim}: the array has {', '.join(map(str, da.dims))}.")
    values = da.astype(np.float64)
    count = values.notnull().sum(dim)
    mean = values.sum(dim) / count.where(count > 0)
    squares = ((values - mean) ** 2).sum(dim)
    sd = (squares / (count - 1).where(count > 1)) ** 0.5
    low, high = find_interval(count.values, mean.values, sd.values, level, share)
    return xr.Dataset({"mean": mean, "low": mean.copy(data=low), "high": mean.copy(data=high)})


def find_interval(
    count: Any, mean: Any, sd: Any, level: float = 0.95, share: Any = False
) -> tuple[Any, Any]:
    """Return the interval of a mean: Student's t, or `share_interval` where `share` is true."""
    half = t_quantile(count, level) * sd / np.sqrt(np.maximum(count, 1))
    if not np.any(share):
        return mean - half, mean + half
    ends = share_interval(count, np.where(share, mean, np.nan), sd, level)
    return tuple(np.where(share, ends, (mean - half, mean + half)))


def t_quantile(count: Any, level: float = 0.95) -> Any:
    """Return Student's t quantile of a mean of `count` seeds; NaN for a single seed.

    The interval of the mean is t_quantile(n) sd / sqrt(n) to either side.
    """
    # scipy.stats takes longer to import than this computes.
    from scipy.special import stdtrit

    return stdtrit(np.where(np.asarray(count) > 1, count - 1, np.nan), (1 + level) / 2)


def share_interval(count: Any, mean: Any, sd: Any, level: float = 0.95) -> tuple[Any, Any]:
    """Return Wilson's interval of a mean of shares, which lies in [0, 1]; NaN for a single seed.

    Wilson's formula is used with Student's quantile and an effective number of binary draws,
    n p (1 - p) / s^2. The mean of this many draws has the same variance as the mean over seeds.
    If all seeds have the same value, s is 0. In this case n draws and the normal quantile are used:
    0 of 30 gives [0, 0.114].

    Args:
        count: n, number of seeds.
        mean: p, mean share over seeds.
        sd: s, standard deviation of the share between seeds.
        level: the interval's coverage, in (0, 1).
    """
    from scipy.special import ndtri

    equal, spread = sd < ROUNDING, mean * (1 - mean)
    z = np.where(equal, ndtri((1 + level) / 2), t_quantile(count, level))
    each = np.where(equal, 1, spread / np.maximum(sd, ROUNDING) ** 2)  # draws a seed
    draws = np.where(count > 1, count * each, np.nan)
    middle = mean + z**2 / (2 * draws)
    half = z * np.sqrt(spread / draws + (z / (2 * draws)) ** 2)
    low, high = ((middle + side) / (1 + z**2 / draws) for side in (-half, half))
    return np.clip(low, 0, mean), np.clip(high, mean, 1)


def paired_difference(
    ds: xr.Dataset, variable: str, policy: str, other: str, level: float = 0.95
) -> xr.Dataset:
    """Subtract `other` from `policy` seed by seed, then average with Student's t interval.

    Args:
        ds: a point, or several combined.
        variable: a variable of the dataset with dimensions policy and seed, or queue_regret or
            throughput.
        policy: the label of the minuend.
        other: the label of the subtrahend.
        level: the interval's coverage, in (0, 1).

    Returns:
        mean, low and high of the difference, over all dimensions except policy and seed.

    Raises:
        ValueError: an unknown variable or policy.
    """
    derived = {"queue_regret": queue_regret, "throughput": throughput}
    by_run = [str(name) for name in ds.data_vars if {"policy", "seed"} <= set(ds[name].dims)]
    if variable not in (*by_run, *derived):
        raise ValueError(f"variable is {variable}: choose one of {', '.join([*by_run, *derived])}.")
    labels = ds["policy"].values.tolist()
    for label in (policy, other):
        if label not in labels:
            raise ValueError(f"policy {label} is not in the result, which has {', '.join(labels)}.")
    values = derived[variable](ds) if variable in derived else ds[variable]
    values = values.astype(np.float64)
    difference = values.sel(policy=policy, drop=True) - values.sel(policy=other, drop=True)
    return mean_ci(difference, level=level)


def select_round(ds: xr.Dataset, t: int) -> xr.Dataset:
    """Select the last recorded round that is not after round `t`.

    The coordinate `round` of the result is the selected round.

    Raises:
        ValueError: the first recorded round is after `t`.
    """
    first = ds["round"].values.min()
    if t < first:
        raise ValueError(f"round is {t}: the first recorded round of this result is {first}.")
    return ds.sel(round=t, method="ffill")


def combine_points(points: Sequence[xr.Dataset], varied: Sequence[str] = ()) -> xr.Dataset:
    """Combine points of one experiment into one dataset; `results.load` describes its dimensions.

    Args:
        points: datasets with attrs K, num_servers, ... and `path`, which errors name.
        varied: further attributes that become a dimension if points differ in them.

    Returns:
        If there is one point, its dataset without attrs["path"]. Otherwise the grid of all points,
        with NaN for combinations that were not run. Its attributes are those that are equal in all
        points, and all `stand_in` labels of proxy datasets.

    Raises:
        ValueError: two points hold the same combination.
    """
    if len(points) == 1:
        own = {key: value for key, value in points[0].attrs.items() if key != "path"}
        return points[0].drop_attrs(deep=False).assign_attrs(own)
    keys = _find_varied_keys(points, varied)
    # If a key is a number at some points and text or missing at others, all its values are text.
    mixed = [key for key in keys if len({is_number(p.attrs.get(key)) for p in points}) > 1]
    points = [
        point.assign_attrs({key: str(point.attrs.get(key, "none")) for key in mixed})
        for point in points
    ]
    _validate_distinct(points, keys)
    labels = list(dict.fromkeys(str(label) for p in points for label in p["policy"].values))
    several_rates = len({tuple(point["arrival_rate"].values) for point in points}) > 1
    # Joining sorts the policies by their labels.
    grid = _stack([_expand_rates(p) for p in points] if several_rates else points, keys)
    grid = grid.sel(policy=labels).assign_coords(policy=labels).drop_attrs(deep=False)
    common = {
        key: value for key, value in points[0].attrs.items()
        if key not in (*keys, "path") and all(p.attrs.get(key) == value for p in points)
    }  # fmt: skip
    return grid.assign_attrs({**common, "stand_in": join_stand_ins(points)})


def find_differing(points: Sequence[xr.Dataset]) -> list[str]:
    """List the attributes in which points differ, except paths and labels, in a fixed order."""
    ignored = ("path", "stand_in", "provenance", "arrival_rate", "servers")
    attributes = (str(key) for point in points for key in point.attrs)
    # A description of a setting is after its key, so that rows are sorted by the number.
    names = sorted(dict.fromkeys([*ALWAYS_VARIED, *attributes]), key=OTHERWISE.__contains__)
    return [
        name
        for name in names
        if name not in ignored and len({point.attrs.get(name) for point in points}) > 1
    ]


def join_stand_ins(points: Sequence[xr.Dataset]) -> str:
    """Join the `stand_in` labels of points, which every table and figure of them shows."""
    labels = [str(point.attrs.get("stand_in", "")) for point in points]
    return "; ".join(dict.fromkeys(filter(None, labels)))


def _find_varied_keys(points: Sequence[xr.Dataset], varied: Sequence[str]) -> list[str]:
    """List the attributes in which points differ and that become dimensions, in a fixed order."""
    keys: dict[str, tuple[Any, ...]] = {}
    for name in dict.fromkeys([*ALWAYS_VARIED, *varied]):
        values = tuple(point.attrs.get(name) for point in points)
        # `source.K` is an alias of K: one dimension, not the diagonal of two.
        is_alias = keys.get(name.rpartition(".")[2]) == values
        if name not in RUN_DIMS and not is_alias and len(set(values)) > 1:
            keys[name] = values
    return list(keys)


def _validate_distinct(points: Sequence[xr.Dataset], keys: Sequence[str]) -> None:
    owners: dict[tuple[Any, ...], str] = {}
    for point in points:
        for rate in point["arrival_rate"].values:
            combination = (*(point.attrs[key] for key in keys), float(rate))
            if combination in owners:
                names = zip((*keys, "arrival_rate"), combination, strict=True)
                raise ValueError(
                    f"{owners[combination]} and {point.attrs['path']} both hold "
                    f"{', '.join(f'{key}={value}' for key, value in names)}: load one of them, "
                    "or name what differs under varied in their manifests."
                )
            owners[combination] = point.attrs["path"]


def _expand_rates(point: xr.Dataset) -> xr.Dataset:
    """Expand variables by policy only, such as seconds_per_round, along the point's rates."""
    rates = point["arrival_rate"].values
    alone = [name for name in point.data_vars if "arrival_rate" not in point[name].dims]
    return point.assign({n: point[n].expand_dims(arrival_rate=rates, axis=-1) for n in alone})


def _stack(points: Sequence[xr.Dataset], keys: Sequence[str]) -> xr.Dataset:
    """Concatenate points along arrival_rate and a new dimension for each key, with NaN for gaps.

    `xr.combine_by_coords` needs every combination, and `xr.merge` makes an array of the size of the
    whole for each point.
    """
    if not keys:
        joined = xr.concat(points, "arrival_rate", **_JOIN) if len(points) > 1 else points[0]
        return joined.sortby("arrival_rate")
    key, *others = keys
    values = sorted({point.attrs[key] for point in points})
    parts = [_stack([p for p in points if p.attrs[key] == value], others) for value in values]
    return xr.concat(parts, xr.Variable(key, values), **_JOIN)
