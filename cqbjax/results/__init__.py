"""Stored results: loading, statistics and tables."""

from typing import TYPE_CHECKING

from cqbjax.core.lazy import lazy_names
from cqbjax.results.store import (
    ResultError,
    load,
    load_points,
    read_config,
    read_manifest,
    stored_points,
)

if TYPE_CHECKING:
    from cqbjax.results import summaries
    from cqbjax.results.query_log import tabulate_queries

__all__ = [
    "ResultError", "load", "load_points", "read_config", "read_manifest", "stored_points",
    "summaries", "tabulate_queries",
]  # fmt: skip

__getattr__, __dir__ = lazy_names(__name__)
