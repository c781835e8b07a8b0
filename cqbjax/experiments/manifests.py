"""What is said of a point beside its arrays: what its numbers follow from, and how they came."""

import datetime
import functools
import importlib.metadata
import json
import platform
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from cqbjax.core import backend
from cqbjax.core.code import digest
from cqbjax.core.files import file_digest, hash_parts, is_path
from cqbjax.datasets import DatasetSource
from cqbjax.engine import checkpoints
from cqbjax.experiments import configs
from cqbjax.experiments.grid import PreparedPoint
from cqbjax.offline import OfflinePolicy
from cqbjax.results.index import CELLS, CacheKey
from cqbjax.results.points import AXES, STUDY_TYPE

SHOWN_VERSIONS = (
    "cqbjax", "jax", "jaxlib", "numpy", "xarray", "hydra-core", "flax", "optax", "scikit-learn",
)  # fmt: skip
# Keys that no number follows from: what is shown, and where and how it is computed. What stands in
# none of these lists counts.
FOR_SHOW = (
    "name", "title", "figure_policies", "spread", "queue", "table", "compared", "objective",
    "table_rounds", "dry_run", "rerun", "fail_fast", "chunk", "memory_gb", "shard_runs",
    "cluster", "results_dir", "data_dir", "cache_dir",
)  # fmt: skip
# Keys that numbers follow from through others, where they count: policies, source and rates.
PASSED_ON = (
    "kappa", "lambda0", "alpha_scale", "c1", "num_samples", "precision", "recall_by",
    "explore_rounds", "window", "exploit_size", "head", "warm", "num_servers", "dim", "slackness",
    "parameters", "rates_by_K", "policies_by_K",
)  # fmt: skip
# Keys that say which runs there are of a point, where others can be added.
RUNS = ("arrival_rate", "first_seed", "num_seeds")
# Where the training of routers and heads begins.
TRAINING = "cqbjax.offline.policies"


class FinishedPoint(NamedTuple):
    """A point that has run.

    Attributes:
        ready: which, with what ran.
        data: from `StudyType.run`.
        seconds: it took, fits and compiling included, with those batched with it.
    """

    ready: PreparedPoint
    data: xr.Dataset
    seconds: float


def cache_key_of(ready: PreparedPoint) -> CacheKey:
    """Hash all that a point's numbers follow from.

    That is its configuration, but for the keys that are declared not to count, here and by its
    study type, and for arrival rates and seeds where these can be added; the content of every file
    that it names; what its source holds; and the code that runs.

    Args:
        ready: a checked point; its policies may be untrained.
    """
    known, policies = ready.point.keys, ready.policies
    if not known.keys() >= {"", *policies}:
        plain = configs.to_plain(ready.point.config)
        told = plain.pop("policy")
        known[""] = known.get("") or _of_point(plain, ready)
        for label, policy in policies.items():
            if label not in known:
                known[label] = hash_parts(_told(told.get(label)), _code_of(policy))
    return CacheKey(known[""], {label: known[label] for label in policies})


def _of_point(plain: dict[str, Any], ready: PreparedPoint) -> str:
    """Hash a point's configuration, policies apart, its source and the code."""
    source, kind = ready.source, ready.kind
    runs = RUNS if kind.extensible else ()
    for key in (*FOR_SHOW, *PASSED_ON, *runs, *kind.display_keys, "kind.prefix"):
        inside, _, name = key.rpartition(".")
        (plain.get(inside, {}) if inside else plain).pop(name, None)
    if isinstance(source, DatasetSource):
        plain["source"].pop("data_dir", None)
        table = source.table  # by whose names latencies are joined
        held = hash_parts(
            source.digest, source.departure_digest, *table.prompt_ids, "", *table.servers
        )
    else:
        held = checkpoints.hash_tree(source)
    code = [checkpoints.hash_code(source, ready.users, ready.service, *ready.recorders)]
    begins = (type(kind).__module__,) if kind.code_modules is None else kind.code_modules
    code += [digest(begins)] if begins else []
    return hash_parts(_told(plain), held, *code)


def _code_of(policy: Any) -> str:
    """Hash what a policy holds and its code; of one that is to be trained, what trains it."""
    if isinstance(policy, OfflinePolicy):
        return digest([TRAINING], policy)
    return hash_parts(checkpoints.hash_tree(policy), digest([], policy))


def _told(values: Any) -> str:
    """Return a configuration in words, with the content of each file that it names."""
    files = [f"{name} {file_digest(Path(name))}" for name in sorted(set(_named(values)))]
    return json.dumps([values, files], sort_keys=True, default=str)


def _named(values: Any) -> Iterator[str]:
    """Yield the words in a configuration that name a file, or a folder by its path."""
    if isinstance(values, Mapping):
        values = list(values.values())
    if isinstance(values, list):
        for value in values:
            yield from _named(value)
    elif isinstance(values, str) and is_path(values):
        yield values


def manifest_of(one: FinishedPoint) -> dict[str, Any]:
    """Return what is said of a point beside its arrays."""
    point, kind, data = one.ready.point, one.ready.kind, one.data
    key = kind.cache_key(one.ready)
    said = {
        "experiment": point.config.name,
        "point": point.name,
        "varied": point.varied,
        "left_out": point.left_out,
        "key": key.point,
        "policies": dict(key.policies),
        "code": checkpoints.hash_code(),
        "tuned": kind.describe_tuning(one.ready),
        "versions": {"python": platform.python_version()}
        | {name: _version(name) for name in SHOWN_VERSIONS},
        "revision": _revision(),
        "machine": backend.describe(),
        "finished": datetime.datetime.now(datetime.UTC).isoformat(),
        "seconds": round(one.seconds, 2),
    }
    if kind.extensible:
        said[CELLS] = {axis: data[axis].values.tolist() for axis in AXES}
    if kind.is_sweep:
        per_policy = data.sizes["arrival_rate"] * data.sizes["seed"] * data.attrs["horizon"]
        labels = [str(label) for label in data.policy.values]
        said["compile_seconds"] = _by_policy(labels, data.compile_seconds.values)
        said["run_seconds"] = _by_policy(labels, data.seconds_per_round.values * per_policy)
    else:
        said[STUDY_TYPE] = type(kind).__name__
    return said


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
