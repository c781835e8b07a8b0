"""What the kinds of study of the theorems share."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import xarray as xr

from cqbjax.core.labels import OPTIMAL
from cqbjax.datasets import DatasetSource
from cqbjax.experiments.configs import Config
from cqbjax.experiments.grid import Ready

if TYPE_CHECKING:
    import polars as pl

# Keys of a sweep's batches and of its figures, which no kind of study of a theorem reads.
UNREAD = ("chunk", "shard_runs", "figure_policies", "spread", "queue", "table", "compared")


def rivals(ready: Ready) -> Ready:
    """Return a point without its optimal policy.

    Raises:
        ValueError: it has no other.
    """
    left = {label: policy for label, policy in ready.policies.items() if label != OPTIMAL}
    if not left:
        kind = type(ready.kind).__name__
        raise ValueError(f"policy names only {OPTIMAL}, and {kind} needs another")
    return ready._replace(policies=left)


def check_source(ready: Ready) -> None:
    """Refuse queries of a dataset, which has no theta* and no sigma_0 of the paper's.

    Raises:
        ValueError: naming the kind of study.
    """
    if isinstance(ready.source, DatasetSource):
        raise ValueError(f"{type(ready.kind).__name__} is of source=synthetic")


def over_rates(by_rate: Sequence[xr.Dataset], config: Config) -> xr.Dataset:
    """Put what was measured at each arrival rate side by side."""
    return xr.concat(by_rate, "arrival_rate").assign_coords(arrival_rate=list(config.arrival_rate))


def cells(points: Sequence[xr.Dataset]) -> Iterator[tuple[float, xr.Dataset]]:
    """Yield each arrival rate of each point, and what was measured there."""
    for point in points:
        for rate in point["arrival_rate"].values.tolist():
            yield rate, point.sel(arrival_rate=rate).assign_attrs(arrival_rate=rate)


def labelled(frame: "pl.DataFrame", setting: Mapping[str, Any]) -> "pl.DataFrame":
    """Put the columns of a setting before a frame's own."""
    import polars as pl

    return frame.select(*(pl.lit(value).alias(key) for key, value in setting.items()), pl.all())
