"""Points of one shape side by side at a round, so that a thousand are summarised as fast as one."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from cqbjax.results.summaries import at_round
from cqbjax.store.shards import shape

# A round that none is later than: of a result, the last one recorded.
LAST = 2**62


class Cells(NamedTuple):
    """Points at one recorded round.

    Attributes:
        attributes: of each point.
        rates: [points, L] arrival rates.
        round: which was recorded.
        data: what was recorded, at that round, over point, policy, arrival_rate (unlabelled), seed.
    """

    attributes: Sequence[Mapping[Any, Any]]
    rates: np.ndarray
    round: int
    data: xr.Dataset

    @property
    def policies(self) -> list[str]:
        """Return the labels of the policies."""
        return [str(label) for label in self.data["policy"].values]

    def by_policy(self, values: xr.DataArray) -> list[Any]:
        """Return an array as lists by point, rate and policy, None where it is NaN.

        Args:
            values: over point and policy, and arrival_rate or not.
        """
        whole = values.astype(float)
        if "arrival_rate" not in whole.dims:
            whole = whole.expand_dims(arrival_rate=self.rates.shape[1])
        numbers: Any = whole.transpose("point", "arrival_rate", "policy").values.astype(object)
        numbers[numbers != numbers] = None
        return list(numbers.tolist())


def side_by_side(points: Sequence[xr.Dataset], rounds: Sequence[int]) -> Iterator[Cells]:
    """Yield points at each of some rounds, those of one shape together.

    Args:
        points: as `results.load_points` returns them.
        rounds: the last recorded one that is not later is taken.

    Raises:
        ValueError: no point, or a round before the first recorded one.
    """
    if not points:
        raise ValueError("points is empty: at least one result is needed for a table.")
    alike: dict[Any, list[xr.Dataset]] = {}
    for point in points:
        alike.setdefault(shape(point), []).append(point)
    for same in alike.values():
        for t in dict.fromkeys(int(at_round(same[0], t)["round"]) for t in rounds):
            yield _cells(same, t)


def _cells(same: Sequence[xr.Dataset], t: int) -> Cells:
    """Stack points of one shape at a recorded round."""
    place = int(np.flatnonzero(same[0]["round"].values == t)[0])
    data: dict[str, Any] = {}
    for name, one in same[0].data_vars.items():
        at = {"round": place} if "round" in one.dims else {}
        kept = tuple(dim for dim in one.dims if dim != "round")
        values = np.stack([point[name].isel(at).values for point in same])
        data[str(name)] = ("point", *kept), values, one.attrs
    rates = np.stack([point["arrival_rate"].values for point in same])
    coords = {"policy": same[0]["policy"].values, "round": t}
    return Cells([point.attrs for point in same], rates, t, xr.Dataset(data, coords))
