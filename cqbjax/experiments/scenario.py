"""What a study draws its queries from: its source, with what is not as in the paper's world."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cqbjax.core.scenario import ServiceModel, UserModel, with_dynamics
from cqbjax.core.types import Source
from cqbjax.datasets import DatasetSource
from cqbjax.datasets.times import read_times
from cqbjax.experiments.configs import Config
from cqbjax.experiments.validation import OF_PAPER
from cqbjax.sources import (
    ArrivalWrapper,
    BatchArrivals,
    BurstyArrivals,
    DriftWrapper,
    convert_trace,
)

PROCESSES = ("bernoulli", "bursty", "batches", "trace")
DRIFT = ("jump_at", "quarter")
NEVER = float("inf")
# Settings that name a file, and settings in place of which others stand.
TABLES = ("delays", "latencies")
REPLACED = {"delays": "return_rate", "latencies": "rounds", "classes": "success"}


def build_queries(
    config: Config,
    source: Source | DatasetSource,
    users: Sequence[UserModel] = (),
    service: Sequence[ServiceModel] = (),
) -> Source:
    """Return what a point's sweep draws from.

    Args:
        config: of the point: `arrivals` and the keys of its process, and `drift`.
        source: of the point.
        users: its kinds of users.
        service: its kinds of service.

    Raises:
        ValueError: `arrivals` is none of the processes, or the trace cannot be read.
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
    """Return when queries come; None for Bernoulli arrivals."""
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
    """Say what is otherwise than in the paper's world, by key; nothing where nothing is."""
    said = {}
    if config.arrivals == "bursty":
        said["arrivals"] = f"bursty ({config.burst:g}, {config.burst_rounds:g} rounds)"
    elif config.arrivals == "batches":
        sizes = list(config.batch_sizes)
        said["arrivals"] = f"batches {sizes}" if sizes else "Poisson"
    elif config.arrivals == "trace":
        said["arrivals"] = f"trace {Path(config.trace).stem}"
    drift = [f"{key} {config.drift[key]:g}" for key in DRIFT if config.drift[key] is not None]
    if drift:
        said["drift"] = ", ".join(drift)
    for group, of_paper in OF_PAPER.items():
        kinds = [
            _describe_dynamics(name, node)
            for name, node in config[group].items()
            if name != of_paper
        ]
        if kinds:
            said[group] = " and ".join(kinds)
    return said


def _describe_dynamics(name: str, node: Config) -> str:
    """Say what a kind is set to, but for what it leaves open."""
    said = {key: value for key, value in list_settings(node).items() if value not in (0, NEVER)}
    words = [f"{key} {value}" for key, value in said.items()]
    return f"{name} ({', '.join(words)})" if words else name


def list_settings(node: Config) -> dict[str, Any]:
    """Return the settings of a source or a kind that are read, files by their names."""
    values = {str(key): value for key, value in node.items() if key != "_target_"}
    said = {key: value for key, value in values.items() if value not in (None, [])}
    said |= {key: Path(said[key]).name for key in TABLES if key in said}
    unread = {old for new, old in REPLACED.items() if new in said}
    return {key: value for key, value in said.items() if key not in unread}
