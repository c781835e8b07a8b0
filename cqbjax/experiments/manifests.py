"""The cache key of a point, and its manifest: the record of how its arrays were computed."""

import datetime
import functools
import importlib.metadata
import json
import platform
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import xarray as xr

from cqbjax.core import backend
from cqbjax.core.code import digest
from cqbjax.core.files import file_digest, hash_parts, is_path
from cqbjax.datasets import DatasetSource
from cqbjax.engine import checkpoints
from cqbjax.experiments import configs
from cqbjax.experiments.grid import PreparedPoint
from cqbjax.experiments.validation import DISPLAY_KEYS, RUN_KEYS
from cqbjax.offline import OfflinePolicy
from cqbjax.results.files import AXES, STUDY_TYPE
from cqbjax.results.index import CELLS, CacheKey

PACKAGES = ("cqbjax", "jax", "jaxlib", "numpy", "xarray", "hydra-core", "optax", "scikit-learn")
# Keys to which others refer (policies, source, rates), and which count there.
INDIRECT_KEYS = (
    "kappa", "lambda0", "alpha_scale", "c1", "num_samples", "sweeps", "precision", "recall_by",
    "explore_rounds", "window", "restart", "exploit_size", "linucb_alpha", "lints_alpha", "tries",
    "ucb_width", "head", "warm", "num_servers", "dim", "slackness", "parameters", "rates_by_K",
    "policies_by_K",
)  # fmt: skip
# The module in which the training of routers and heads begins.
TRAINING = "cqbjax.offline.policies"


def cache_key_of(prepared: PreparedPoint) -> CacheKey:
    """Hash everything that determines the numbers of a point.

    That is the configuration without the keys declared above and by the study type, and without
    arrival rates and seeds if these can be added; the content of every file that it names; the
    source; and the code that runs.

    Args:
        prepared: a validated point; its policies may be untrained.
    """
    keys, policies = prepared.point.keys, prepared.policies
    if not keys.keys() >= {"", *policies}:
        plain = configs.to_plain(prepared.point.config)
        nodes = plain.pop("policy")
        keys[""] = keys.get("") or _hash_point(plain, prepared)
        for label, policy in policies.items():
            if label in keys:
                continue
            if isinstance(policy, OfflinePolicy):  # the code that trains it
                content = digest([TRAINING], policy)
            else:
                content = hash_parts(checkpoints.hash_tree(policy), digest([], policy))
            keys[label] = hash_parts(_serialise(nodes.get(label)), content)
    return CacheKey(keys[""], {label: keys[label] for label in policies})


def _hash_point(plain: dict[str, Any], prepared: PreparedPoint) -> str:
    """Hash the configuration of a point without its policies, its source and the code."""
    source, study_type = prepared.source, prepared.study_type
    runs = RUN_KEYS if study_type.extensible else ()
    excluded = (*DISPLAY_KEYS, *INDIRECT_KEYS, *runs, *study_type.display_keys, "kind.prefix")
    for key in excluded:
        parent, _, name = key.rpartition(".")
        (plain.get(parent, {}) if parent else plain).pop(name, None)
    if isinstance(source, DatasetSource):
        plain["source"].pop("data_dir", None)
        table = source.table  # latencies are joined by its names
        data = hash_parts(source.digest, *table.prompt_ids, "", *table.servers)
    else:
        data = checkpoints.hash_tree(source)
    code = [checkpoints.hash_code(source, prepared.users, prepared.service, *prepared.recorders)]
    modules = study_type.code_modules
    modules = (type(study_type).__module__,) if modules is None else modules
    code += [digest(modules)] if modules else []
    return hash_parts(_serialise(plain), data, *code)


def _serialise(values: Any) -> str:
    """Return a configuration as text, with a digest of each file that it names."""
    files = [f"{name} {file_digest(Path(name))}" for name in sorted(set(_find_paths(values)))]
    return json.dumps([values, files], sort_keys=True, default=str)


def _find_paths(values: Any) -> Iterator[str]:
    """Yield the texts in a configuration that are paths of files or folders."""
    if isinstance(values, Mapping):
        values = list(values.values())
    if isinstance(values, list):
        for value in values:
            yield from _find_paths(value)
    elif isinstance(values, str) and is_path(values):
        yield values


def manifest_of(prepared: PreparedPoint, data: xr.Dataset, seconds: float) -> dict[str, Any]:
    """Return the manifest of a point.

    Args:
        prepared: the point, with the policies that ran.
        data: from `StudyType.run`.
        seconds: run time of its shard, with fits and compiling.
    """
    point, study_type = prepared.point, prepared.study_type
    key = study_type.cache_key(prepared)
    manifest = {
        "experiment": point.config.name,
        "point": point.name,
        "varied": point.varied,
        "left_out": point.left_out,
        "key": key.point,
        "policies": dict(key.policies),
        "code": checkpoints.hash_code(),
        "versions": {name: _find_version(name) for name in PACKAGES}
        | {"python": platform.python_version()},
        "revision": _find_revision(),
        "machine": backend.describe(),
        "finished": datetime.datetime.now(datetime.UTC).isoformat(),
        "seconds": round(seconds, 2),
    }
    if study_type.extensible:
        manifest[CELLS] = {axis: data[axis].values.tolist() for axis in AXES}
    if not study_type.is_sweep:
        manifest[STUDY_TYPE] = type(study_type).__name__
    return manifest


@functools.cache
def _find_version(package: str) -> str:
    """Return the installed version of a package, or that it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


@functools.cache
def _find_revision() -> str:
    """Return the last commit of the package, marked if files have changed since.

    The text is empty if the package is not in a checkout.
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
