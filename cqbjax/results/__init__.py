"""What stored results say: frames, intervals, tables, extracts."""

from cqbjax.results.store import (
    ENDING,
    VARIABLES,
    ResultError,
    load,
    load_points,
    read_config,
    read_manifest,
    save,
    stored_points,
)

__all__ = [
    "ENDING", "VARIABLES", "ResultError", "load", "load_points", "read_config", "read_manifest",
    "save", "stored_points",
]  # fmt: skip
