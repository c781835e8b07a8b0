"""The scenario of a study: its source with arrivals, drift, and user and service dynamics."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cqbjax.core.inputs import UNSET
from cqbjax.core.scenario import ServiceModel, UserModel, with_dynamics
from cqbjax.core.types import Source
from cqbjax.datasets import DatasetSource
from cqbjax.datasets.times import read_times
from cqbjax.experiments.configs import Config
from cqbjax.experiments.validation import PAPER_DYNAMICS
from cqbjax.sources import (
    ArrivalWrapper,
    BatchArrivals,
    BurstyArrivals,
    DriftWrapper,
    convert_trace,
)

PROCESSES = ("bernoulli", "bursty", "batches", "trace")
DRIFT = ("jump_at", "quarter")
# Settings that name a file, and settings that replace another one.
TABLES = ("delays", "latencies")
REPLACED = {"delays": "return_rate", "latencies": "rounds", "classes": "success"}


def build_queries(
    config: Config,
    source: Source | DatasetSource,
    users: Sequence[UserModel] = (),
    service: Sequence[ServiceModel] = (),
) -> Source:
    """Return the source of a point's sweep, with arrivals, drift and dynamics.

    Args:
        config: configuration of the point: `arrivals` and the keys of its process, and `drift`.
        source: source of the point.
        users: user models.
        service: service models.

    Raises:
        ValueError: `arrivals` is not one of the processes, or the trace cannot be read.
    """
    drawn: Any = source.queries if isinstance(source, DatasetSource) else source
    drift = {key: config.drift[key] for key in DRIFT if config.drift[key] is not None}
    if drift:
        drawn = DriftWrapper(source=drawn, **drift)
    process = _build_process(config)
    if process is not None:
        drawn = ArrivalWrapper(source=drawn, process=process)
    return with_dynamics(drawn, users, service)


def _build_process(config: Config) -> Any:
    """Return the arrival process; None for Bernoulli arrivals."""
    if config.arrivals not in PROCESSES:
        raise ValueError(f"arrivals={config.arrivals} must be one of {', '.join(PROCESSES)}")
    if config.arrivals == "bernoulli":
        return None
    if config.arrivals == "bursty":
        return BurstyArrivals(burst=config.burst, burst_rounds=config.burst_rounds)
    if config.arrivals == "batches":
        return BatchArrivals(most=config.batch_most, sizes=list(config.batch_sizes) or None)
    if config.trace is None:
        raise ValueError("arrivals=trace needs trace=FILE, a table with a column of times")
    return convert_trace(read_times(config.trace, config.trace_column))


def describe_differences(config: Config) -> dict[str, str]:
    """Describe where arrivals, drift and dynamics differ from the paper's, by key."""
    differences = {}
    if config.arrivals == "bursty":
        differences["arrivals"] = f"bursty ({config.burst:g}, {config.burst_rounds:g} rounds)"
    elif config.arrivals == "batches":
        sizes = list(config.batch_sizes)
        differences["arrivals"] = f"batches {sizes}" if sizes else "Poisson"
    elif config.arrivals == "trace":
        differences["arrivals"] = f"trace {Path(config.trace).stem}"
    drift = [f"{key} {config.drift[key]:g}" for key in DRIFT if config.drift[key] is not None]
    if drift:
        differences["drift"] = ", ".join(drift)
    for group, of_paper in PAPER_DYNAMICS.items():
        nodes = {name: node for name, node in config[group].items() if name != of_paper}
        if nodes:
            differences[group] = " and ".join(map(_describe_model, nodes, nodes.values()))
    return differences


def _describe_model(name: str, node: Config) -> str:
    """Describe a user or service model by those of its settings that have an effect."""
    settings = list_settings(node)
    words = [f"{key} {value}" for key, value in settings.items() if value not in UNSET]
    return f"{name} ({', '.join(words)})" if words else name


def list_settings(node: Config) -> dict[str, Any]:
    """Return the settings of a source or model that are read, with file names for paths."""
    settings = {
        str(key): value for key, value in node.items()
        if key != "_target_" and value not in (None, [])
    }  # fmt: skip
    settings |= {key: Path(settings[key]).name for key in TABLES if key in settings}
    unread = {old for new, old in REPLACED.items() if new in settings}
    return {key: value for key, value in settings.items() if key not in unread}
