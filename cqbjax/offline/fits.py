"""Fits of routers, made once and kept by content; what all fits are made from and where they lie.

A fit knows neither K nor the arrival rate: the points of a study share it.
"""

import collections
import contextlib
import dataclasses
import hashlib
import importlib.metadata
import pathlib
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import platformdirs
import threadpoolctl

from cqbjax.core.files import content_key, load_json, memo, save_json
from cqbjax.datasets import DatasetSource, Split
from cqbjax.offline.routers import OfflineSplit, Router
from cqbjax.offline.routers.base import is_on_departures
from cqbjax.sweeping.progress import Reporter

FORMAT = "1"  # raise when the same settings would give another fit
# Libraries whose versions are part of a fit's key.
FITTING = ("scikit-learn", "jax", "flax", "optax", "numpy")
# scikit-learn's fits are small: on a busy machine threads that wait for each other cost seven times
# as much processor time as one.
ONE_THREAD = 1


class Data(NamedTuple):
    """What fits are made from.

    Attributes:
        source: the dataset.
        embeddings: [P, d] float32.
        digest: of the source, whatever its rho.
        folder: where fits are kept.
    """

    source: DatasetSource
    embeddings: np.ndarray
    digest: str
    folder: pathlib.Path

    def offline(self, rows: np.ndarray) -> OfflineSplit:
        """Return what a router may learn from: these rows of the table."""
        table = self.source.table
        return OfflineSplit(
            self.embeddings[rows], table.performance[rows], self.source.cost[rows],
            self.source.probabilities[rows],
        )  # fmt: skip

    def settings(self, router: Router) -> tuple[Any, ...]:
        """Return what of the dataset decides a router's fit beyond the digest."""
        rho = self.source.rho
        return (rho, self.source.departure_digest) if is_on_departures(router) else (rho,)


def cache_folder(cache_dir: str | None) -> pathlib.Path:
    """Return where fits are kept: `cache_dir`, or a folder of the user's cache."""
    if cache_dir is not None:
        return pathlib.Path(cache_dir)
    return pathlib.Path(platformdirs.user_cache_dir("cqbjax")) / "fits"


def read(source: DatasetSource, cache_dir: pathlib.Path) -> Data:
    """Return the data of a dataset's fits."""
    return Data(source, source.embeddings, source.digest, cache_dir / source.dataset)


def fit_key(data: Data, parts: Split, seed: int, *settings: Any) -> str:
    """Hash what a fit depends on.

    Args:
        data: from `read`.
        parts: the seed's split.
        seed: of the fit.
        settings: whatever else decides what comes out, by its `repr`.
    """
    split = hashlib.sha256(
        np.concatenate([parts.pool, [-1], parts.offline]).astype(np.int64).tobytes()
    )
    versions = [f"{name} {importlib.metadata.version(name)}" for name in FITTING]
    words = (FORMAT, *versions, data.digest, split.hexdigest(), str(seed), *map(repr, settings))
    return content_key(*words)


def pool_scores(
    label: str, router: Router, data: Data, splits: Mapping[int, Split],
    tuning_seed: int | None, progress: Reporter,
) -> list[np.ndarray]:  # fmt: skip
    """Return each seed's predicted utilities [I, N] of its pool, fitted or kept.

    Args:
        label: of the policy, for the progress bar.
        router: settings.
        data: from `read`.
        splits: seed -> its split.
        tuning_seed: as in `training.per_seed`.
        progress: told of the fits.
    """
    by_seed = []
    with warned_once(len(splits)), progress.steps(f"fitting {label}", len(splits)) as done:
        if tuning_seed is not None:
            router = tuned(router, data, tuning_seed)
        for seed, parts in splits.items():
            fixed = tuned(router, data, seed) if tuning_seed is None else router
            by_seed.append(scores(fixed, data, parts, seed))
            done(1)
    return by_seed


@contextlib.contextmanager
def warned_once(seeds: int) -> Iterator[None]:
    """Say at the end what fits warned of: each sentence once, and of how many of the seeds."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    said = collections.Counter((one.category, str(one.message)) for one in caught)
    for (category, sentence), many in said.items():
        warnings.warn(f"{sentence} ({many} of {seeds} seeds)", category, stacklevel=3)


def scores(router: Router, data: Data, parts: Split, seed: int) -> np.ndarray:
    """Return predicted utilities [I, N] of a seed's pool, fitted on its offline split or kept.

    Args:
        router: settings.
        data: from `read`.
        parts: the seed's split.
        seed: of the fit.
    """
    rho = data.source.rho
    path = data.folder / f"{fit_key(data, parts, seed, router, *data.settings(router))}.npy"

    def fit() -> np.ndarray:
        with threadpoolctl.threadpool_limits(ONE_THREAD):
            fitted = router.fit(data.offline(parts.offline), rho=rho, seed=seed)
        return np.asarray(fitted.predict(data.embeddings[parts.pool]), np.float32)

    return memo(path, fit, np.save, np.load)


def tuned(router: Router, data: Data, seed: int) -> Router:
    """Return the router with hyper-parameters cross-validated on the offline split of `seed`.

    Args:
        router: settings.
        data: from `read`.
        seed: of the split, and of the folds.
    """
    parts, rho = data.source.split(seed), data.source.rho
    settings = ("tuned", router, *data.settings(router))
    path = data.folder / f"{fit_key(data, parts, seed, *settings)}.json"

    def tune() -> dict[str, Any]:
        with threadpoolctl.threadpool_limits(ONE_THREAD):
            chosen = router.tune(data.offline(parts.offline), rho=rho, seed=seed)
        return dataclasses.asdict(chosen)  # type: ignore[call-overload]

    fields = memo(path, tune, save_json, load_json)
    return type(router)(**{key: _frozen(value) for key, value in fields.items()})


def _frozen(value: Any) -> Any:
    """Turn JSON's lists back into tuples."""
    return tuple(_frozen(each) for each in value) if isinstance(value, list) else value
