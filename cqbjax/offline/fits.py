"""Fits of each seed, cached under a hash of everything that determines them.

A fit depends neither on K nor on the arrival rate, so that the points of a study share it.
"""

import contextlib
import dataclasses
import functools
import importlib.metadata
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import threadpoolctl

from cqbjax.core import files
from cqbjax.core.code import digest
from cqbjax.datasets import DatasetSource
from cqbjax.engine.progress import Reporter
from cqbjax.offline.routers.base import OfflineSplit, Router, is_on_departures

# Libraries whose versions are part of a fit's cache key.
LIBRARIES = ("scikit-learn", "scipy", "jax", "optax", "numpy")


class FitData(NamedTuple):
    """Data of the fits of a dataset.

    Attributes:
        source: the dataset.
        embeddings: [P, d] float32.
        rho: weight of the cost in the training target.
        folder: folder of the cached fits.
        progress: reports the fits.
    """

    source: DatasetSource
    embeddings: np.ndarray
    rho: float
    folder: pathlib.Path
    progress: Reporter

    def offline(self, rows: np.ndarray) -> OfflineSplit:
        """Return these rows of the table as the training data of a router."""
        source = self.source
        return OfflineSplit(
            self.embeddings[rows], source.table.performance[rows], source.cost[rows],
            source.probabilities[rows],
        )  # fmt: skip

    def path(self, seed: int, form: files.FileFormat, settings: Sequence[Any]) -> pathlib.Path:
        """Return the file of a fit, named by data, split, settings, code and library versions.

        Args:
            seed: seed of the fit, and of the split that it learns from.
            form: format of the file.
            settings: everything else that determines the fit, by its `repr`; the code of their
                classes counts.
        """
        code = digest(["cqbjax.core", "cqbjax.datasets", __name__], *settings)
        parts = (*_library_versions(), code, self.source.digest, str(seed))
        split = files.arrays_digest(self.source.split(seed))
        return self.folder / f"{files.hash_parts(*parts, split, *map(repr, settings))}{form.suffix}"

    def fit_or_load(
        self, label: str, paths: Mapping[int, pathlib.Path], form: files.FileFormat,
        fit: Callable[[Sequence[int]], Iterable[Any]], at_once: int = 1,
    ) -> dict[int, Any]:  # fmt: skip
        """Return the fit of each seed, read from its file, fitted first if there is none.

        Args:
            label: label of the progress bar.
            paths: seed -> file, from `path`.
            form: format of the files.
            fit: fits some seeds, in their order.
            at_once: number of seeds in one call of `fit`.

        Raises:
            ValueError: a damaged file.
        """

        def fit_missing(missing: list[int]) -> Iterator[tuple[int, Any]]:
            with self.progress.track_steps(label, len(missing)) as done:
                for start in range(0, len(missing), at_once):
                    seeds = missing[start : start + at_once]
                    yield from zip(seeds, list(fit(seeds)), strict=True)
                    done(len(seeds))

        return files.load_or_compute_all(paths, fit_missing, form)


@functools.cache
def _library_versions() -> tuple[str, ...]:
    return tuple(f"{name} {importlib.metadata.version(name)}" for name in LIBRARIES)


def cache_folder(cache_dir: str | None) -> pathlib.Path:
    """Return the folder of cached fits: `cache_dir`, or a folder of the user's cache.

    Raises:
        ValueError: `cache_dir` cannot be written.
    """
    if cache_dir is None:
        return files.user_cache() / "fits"
    return files.check_writable(pathlib.Path(cache_dir), "cache_dir")


def make_fit_data(
    source: DatasetSource, cache_dir: pathlib.Path, progress: Reporter | None = None
) -> FitData:
    """Return the data of a dataset's fits, which are cached in `cache_dir/<dataset>/`."""
    folder = cache_dir / source.dataset
    return FitData(source, source.embeddings, source.rho, folder, progress or Reporter())


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Limit scikit-learn to one thread.

    Its fits are small: on a busy machine, threads that wait for each other cost seven times as much
    processor time as one.
    """
    import sklearn  # noqa: F401  only loaded libraries are limited

    with threadpoolctl.threadpool_limits(1):
        yield


def predict_utilities(
    routers: Mapping[int, Router], data: FitData, label: str = "", method: str = "predict"
) -> dict[int, np.ndarray]:
    """Fit a router on each seed's offline split, and predict the utilities [I, N] of its pool.

    Args:
        routers: seed -> settings.
        data: from `make_fit_data`.
        label: label of the policy, for the progress bar.
        method: the method of the trained router, if its result is another one than utilities.
    """

    def fit(seeds: Sequence[int]) -> Iterator[np.ndarray]:
        for seed in seeds:
            split = data.source.split(seed)
            with one_thread():
                fitted = routers[seed].fit(data.offline(split.offline), rho=data.rho, seed=seed)
                predicted = getattr(fitted, method)(data.embeddings[split.pool])
            yield np.asarray(predicted, np.float32)

    more = [] if method == "predict" else [method]
    paths = {
        seed: data.path(seed, files.ARRAY, (*_fit_settings(router, data), *more))
        for seed, router in routers.items()
    }
    return data.fit_or_load(f"fitting {label}", paths, files.ARRAY, fit)


def tune_routers(router: Router, data: FitData, seeds: Sequence[int]) -> dict[int, Router]:
    """Cross-validate a router's hyper-parameters on the offline split of each seed."""

    def tune(seeds: Sequence[int]) -> Iterator[dict[str, Any]]:
        for seed in seeds:
            split = data.offline(data.source.split(seed).offline)
            with one_thread():
                tuned: Any = router.tune(split, rho=data.rho, seed=seed)
            yield dataclasses.asdict(tuned)

    settings = ("tuned", *_fit_settings(router, data))
    paths = {seed: data.path(seed, files.JSON, settings) for seed in seeds}
    tuned = data.fit_or_load(f"tuning {type(router).__name__}", paths, files.JSON, tune)
    return {
        seed: type(router)(**{key: _to_tuple(value) for key, value in fields.items()})
        for seed, fields in tuned.items()
    }


def tune_router(router: Router, data: FitData, seed: int) -> Router:
    """Cross-validate a router's hyper-parameters on the offline split of `seed`."""
    return tune_routers(router, data, [seed])[seed]


def _fit_settings(router: Router, data: FitData) -> tuple[Any, ...]:
    """Return everything that determines a router's fit, beside scores and costs."""
    departures = [data.source.departure_digest] if is_on_departures(router) else []
    return router, data.rho, *departures


def _to_tuple(value: Any) -> Any:
    """Turn JSON's lists back into tuples."""
    return tuple(_to_tuple(each) for each in value) if isinstance(value, list) else value
