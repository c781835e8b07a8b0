"""What is said of a point beside its arrays: what its numbers follow from, and how they came."""

import datetime
import functools
import importlib.metadata
import json
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from omegaconf import OmegaConf

from cqbjax.core import backend
from cqbjax.core.files import content_key
from cqbjax.datasets import DatasetSource
from cqbjax.studies.grid import Point, Ready
from cqbjax.sweeping import checkpoint

SHOWN_VERSIONS = (
    "cqbjax", "jax", "jaxlib", "numpy", "xarray", "hydra-core", "flax", "optax", "scikit-learn",
)  # fmt: skip
# The keys of a configuration that numbers follow from.
COMPUTING = [
    "policy", "source", "arrival_rate", "num_seeds", "first_seed", "horizon", "record_every", "K",
    "capacity", "recorders", "tuning_seed", "arrivals", "burst", "burst_rounds", "trace",
    "trace_column",
]  # fmt: skip


class Content(NamedTuple):
    """What a point's numbers follow from, hashed.

    Attributes:
        point: configuration, data and code, policies apart.
        policies: label -> the policy's configuration, and the code of its own.
    """

    point: str
    policies: Mapping[str, str]


class Finished(NamedTuple):
    """A point that has run.

    Attributes:
        point: which.
        content: what its numbers follow from.
        data: from `run`.
        seconds: it took, fits and compiling included, with those batched with it.
        tuned: label -> the hyper-parameters that a router was fitted with.
    """

    point: Point
    content: Content
    data: xr.Dataset
    seconds: float
    tuned: Mapping[str, Any]


def content_of(ready: Ready) -> Content:
    """Hash all that a point's numbers follow from.

    Args:
        ready: a checked point; its policies may be untrained.
    """
    config, source = ready.point.config, ready.source
    computing: Any = OmegaConf.to_container(OmegaConf.masked_copy(config, COMPUTING))
    policies = computing.pop("policy")
    data = ""
    if isinstance(source, DatasetSource):
        computing["source"].pop("data_dir", None)
        data = f"{source.digest} {source.departure_digest}"
    words = json.dumps(computing, sort_keys=True, default=str)
    return Content(
        content_key(words, data, checkpoint.code(*ready.recorders)),
        {
            label: content_key(json.dumps(policies[label], default=str), checkpoint.code(policy))
            for label, policy in ready.policies.items()
        },
    )


def manifest_of(one: Finished) -> dict[str, Any]:
    """Return what is said of a point beside its arrays."""
    point, data, content = one.point, one.data, one.content
    per_policy = data.sizes["arrival_rate"] * data.sizes["seed"] * data.attrs["horizon"]
    labels = [str(label) for label in data.policy.values]
    return {
        "experiment": point.config.name,
        "point": point.name,
        "varied": point.varied,
        "left_out": point.left_out,
        "content": content.point,
        "policies": dict(content.policies),
        "code": checkpoint.code(),
        "tuned": dict(one.tuned),
        "versions": {"python": platform.python_version()}
        | {name: _version(name) for name in SHOWN_VERSIONS},
        "revision": _revision(),
        "machine": backend.describe(),
        "finished": datetime.datetime.now(datetime.UTC).isoformat(),
        "seconds": round(one.seconds, 2),
        "compile_seconds": _by_policy(labels, data.compile_seconds.values),
        "run_seconds": _by_policy(labels, data.seconds_per_round.values * per_policy),
    }


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
