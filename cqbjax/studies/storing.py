"""A point's result: where it is stored, with what beside it, and whether it is there already."""

import datetime
import functools
import importlib.metadata
import json
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from omegaconf import OmegaConf

from cqbjax.datasets import DatasetSource
from cqbjax.files import content_key
from cqbjax.report import results
from cqbjax.studies.grid import Point, Ready
from cqbjax.sweeping import backend, checkpoint

SHOWN_VERSIONS = (
    "cqbjax", "jax", "jaxlib", "numpy", "xarray", "hydra-core", "flax", "optax", "scikit-learn",
)  # fmt: skip
# The keys of a configuration that numbers follow from.
COMPUTING = [
    "policy", "source", "arrival_rate", "num_seeds", "first_seed", "horizon", "record_every", "K",
    "capacity", "tuning_seed",
]  # fmt: skip


def place(point: Point, folder: Path) -> Path:
    """Return a point's file below its experiment's folder."""
    return folder / f"{point.name}{results.ENDING}"


def store(
    point: Point,
    data: xr.Dataset,
    folder: Path,
    seconds: float,
    tuned: Mapping[str, Any] | None = None,
    content: str | None = None,
) -> Path:
    """Store one point's arrays, manifest and resolved configuration atomically.

    Args:
        point: from `settle`.
        data: from `run`.
        folder: of the experiment; the point goes below it.
        seconds: the point took, fits and compiling included, with those batched with it.
        tuned: label -> the hyper-parameters that a router was fitted with, from `tuned`.
        content: from `content_of`.

    Returns:
        The point's file.
    """
    per_policy = data.sizes["arrival_rate"] * data.sizes["seed"] * data.attrs["horizon"]
    labels = [str(label) for label in data.policy.values]
    manifest = {
        "experiment": point.config.name,
        "point": point.name,
        "varied": point.varied,
        "left_out": point.left_out,
        "content": content or "",
        "code": checkpoint.code(),
        "tuned": dict(tuned or {}),
        "versions": {"python": platform.python_version()}
        | {name: _version(name) for name in SHOWN_VERSIONS},
        "revision": _revision(),
        "machine": backend.describe(),
        "finished": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds, 2),
        "compile_seconds": _by_policy(labels, data.compile_seconds.values),
        "run_seconds": _by_policy(labels, data.seconds_per_round.values * per_policy),
    }
    where = place(point, folder)
    results.save(data, manifest, OmegaConf.to_yaml(point.config), where)
    return where


def content_of(ready: Ready) -> str:
    """Hash all that a point's numbers follow from: configuration, data, and the code.

    Args:
        ready: a checked point; its policies may be untrained.
    """
    config, source = ready.point.config, ready.source
    computing: Any = OmegaConf.to_container(OmegaConf.masked_copy(config, COMPUTING))
    data = ""
    if isinstance(source, DatasetSource):
        computing["source"].pop("data_dir", None)
        data = f"{source.digest} {source.departure_digest}"
    words = json.dumps(computing, sort_keys=True, default=str)
    return content_key(words, data, checkpoint.code(*ready.policies.values()))


def finished(ready: Ready, folder: Path) -> bool:
    """Tell whether a point is stored already, with the same configuration, data and code."""
    where = place(ready.point, folder)
    if ready.point.config.rerun or not where.is_file():
        return False
    try:
        return bool(results.read_manifest(where).get("content") == content_of(ready))
    except results.ResultError:
        return False  # torn, or of an older kind: it is computed again


def _by_policy(labels: list[str], values: np.ndarray) -> dict[str, float]:
    """Round seconds for a manifest."""
    return {label: round(float(value), 3) for label, value in zip(labels, values, strict=True)}


@functools.cache
def _version(package: str) -> str:
    """Return an installed version, or say that the package is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


@functools.cache
def _revision() -> str:
    """Return the commit that last changed the package, marked if files were changed since.

    Nothing where the package is not in a checkout.
    """
    git = ["git", "-C", str(Path(__file__).parents[1])]
    try:
        last, changed = (
            subprocess.run([*git, *words, "--", "."], capture_output=True, text=True).stdout.strip()
            for words in (("log", "-1", "--format=%h"), ("status", "--porcelain"))
        )
    except OSError:
        return ""
    return f"{last}-dirty" if last and changed else last
