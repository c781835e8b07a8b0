"""What a study draws its queries from: its source, with the arrivals that it asks for."""

from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from cqbjax.core.types import Source
from cqbjax.datasets import DatasetSource
from cqbjax.datasets.readers.times import read_times
from cqbjax.sources.arrivals import Arriving, Bursty, traced

PROCESSES = ("bernoulli", "bursty", "trace")


def queries(config: DictConfig, source: Source | DatasetSource) -> Source:
    """Return what a point's sweep draws from.

    Args:
        config: of the point: `arrivals` and the keys of its process.
        source: of the point.

    Raises:
        ValueError: `arrivals` is none of the processes, or the trace cannot be read.
    """
    drawn: Any = source.queries if isinstance(source, DatasetSource) else source
    if config.arrivals == "bernoulli":
        return drawn
    if config.arrivals == "bursty":
        return Arriving(
            source=drawn, process=Bursty(burst=config.burst, burst_rounds=config.burst_rounds)
        )
    if config.arrivals != "trace":
        raise ValueError(f"arrivals={config.arrivals} must be one of {', '.join(PROCESSES)}")
    if config.trace is None:
        raise ValueError("arrivals=trace needs trace=FILE, a table with a column of times")
    return Arriving(source=drawn, process=traced(read_times(config.trace, config.trace_column)))


def told(config: DictConfig) -> str:
    """Say how queries arrive; nothing for Bernoulli arrivals."""
    if config.arrivals == "bursty":
        return f"bursty ({config.burst:g}, {config.burst_rounds:g} rounds)"
    return f"trace {Path(config.trace).stem}" if config.arrivals == "trace" else ""
