"""Metrics of a policy: how they are computed from stored arrays, and their names.

Each stored array over policy, arrival_rate, seed and optionally round is a metric with the same
name. Its attributes `long_name`, `units` and `better` (`more` or `less`) describe it, so that a
user-defined recorder needs no entry here.
"""

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import xarray as xr

from cqbjax.core.inputs import suggest_names
from cqbjax.core.labels import SERVER, SERVERS, split_names
from cqbjax.results.files import RUN_DIMS, VARIABLES
from cqbjax.results.summaries import add_time_per_arrival, queue_regret, throughput


class Metric(NamedTuple):
    """A metric.

    Attributes:
        of: function that computes the values of each seed from a point.
        long_name: full name.
        units: units of the values.
        better: `more` or `less`; empty if neither is better.
        symbol: label of an axis; None: long_name and units.
        of_run: whether it has one value per run.
        share: whether the values lie in [0, 1]; true if the units are empty.
        server: name of the server, if each server has such a metric.
    """

    of: Callable[[xr.Dataset], xr.DataArray]
    long_name: str
    units: str = ""
    better: str = ""
    symbol: str | None = None
    of_run: bool = False
    share: bool = False
    server: str = ""

    @property
    def label(self) -> str:
        """Label of an axis."""
        return self.symbol or ", ".join(filter(None, (self.long_name, self.units)))


# Metrics of the arrays that every point has.
STANDARD = {
    "gap": Metric(queue_regret, "Queue length regret", "queries", "less", "Q - Q*, queries"),
    "queue_length": Metric(itemgetter("queue_length"), "Queue length", "queries", "less",
                           "Q, queries"),
    "regret": Metric(itemgetter("regret"), "Cumulative regret", "expected departures", "less",
                     "cumulative regret"),
    "throughput": Metric(throughput, "throughput", "queries a round", "more"),
    "explored": Metric(itemgetter("explored"), "explored rounds"),
}  # fmt: skip


def find_recorded(points: Sequence[xr.Dataset]) -> dict[str, Metric]:
    """Return the metrics of user-defined and optional recorders, and `time_per_arrival`."""
    return {
        str(name): Metric(
            itemgetter(str(name)),
            ", ".join(filter(None, (str(array.attrs.get("long_name", name)), server))),
            str(array.attrs.get("units", "")), str(array.attrs.get("better", "")),
            of_run="round" not in array.dims, share=array.attrs.get("units") == "", server=server,
        )
        for point in map(add_time_per_arrival, points)
        for name, array in point.data_vars.items()
        if name not in VARIABLES and {*RUN_DIMS[:3]} <= {*array.dims} <= {*RUN_DIMS}
        for server in [_name_server(array, point)]
    }  # fmt: skip


def _name_server(array: xr.DataArray, point: xr.Dataset) -> str:
    """Return the name of an array's server, or its number without names; "" without a server."""
    if SERVER not in array.attrs:
        return ""
    number, names = int(array.attrs[SERVER]), split_names(str(point.attrs.get(SERVERS, "")))
    return names[number] if len(names) > number and names[number] else f"LLM {number}"


def list_metrics(points: Sequence[xr.Dataset]) -> dict[str, Metric]:
    """Return all metrics of points by name."""
    return STANDARD | find_recorded(points)


def list_shares(metrics: Mapping[str, Metric]) -> list[str]:
    """Return the names of metrics that are shares."""
    return [name for name, one in metrics.items() if one.share]


def list_panels(points: Sequence[xr.Dataset], config: Mapping[str, Any]) -> list[str]:
    """Return the metrics of a study's figure, from left to right.

    Args:
        points: points of the study.
        config: configuration of the study; `queue` is read.
    """
    queue = {"both": ["gap", "queue_length"], "length": ["queue_length", "regret"]}
    # Of recorded metrics those with a value per round, except those by server: too many panels.
    curves = [
        name for name, metric in find_recorded(points).items() if not metric.of_run
        if all("round" in one[name].dims and SERVER not in one[name].attrs for one in points)
    ]  # fmt: skip
    return [*queue.get(str(config.get("queue")), ["gap", "regret"]), *curves]


def validate_metrics(points: Sequence[xr.Dataset], names: Sequence[str]) -> None:
    """Raise a `ValueError` for an unknown metric, naming the known ones."""
    known = list_metrics(points)
    for name in names:
        if name not in known:
            raise ValueError(f"metric {name} is unknown{suggest_names(name, list(known))}")
