"""Fits of each seed, cached under a hash of everything that determines them.

A fit depends neither on K nor on the arrival rate, so that the points of a study share it.
"""

import dataclasses
import functools
import importlib.metadata
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import threadpoolctl

from cqbjax.core import files
from cqbjax.core.code import digest
from cqbjax.datasets import DatasetSource
from cqbjax.engine.progress import Reporter
from cqbjax.offline.routers.base import OfflineSplit, Router

# Libraries whose versions are part of a fit's cache key.
LIBRARIES = ("scikit-learn", "scipy", "jax", "optax", "numpy")


class FitData(NamedTuple):
    """Data of the fits of a dataset.

    Attributes:
        source: the dataset.
        folder: folder of the cached fits.
        progress: reports the fits.
    """

    source: DatasetSource
    folder: pathlib.Path
    progress: Reporter

    def offline(self, rows: np.ndarray) -> OfflineSplit:
        """Return these rows of the table as the training data of a router."""
        source = self.source
        return OfflineSplit(
            source.embeddings[rows], source.table.performance[rows], source.cost[rows],
            source.probabilities[rows],
        )  # fmt: skip

    def fit_or_load(
        self, kind: str, label: str, settings: Mapping[int, Any],
        fit: Callable[..., Sequence[Any]], form: files.FileFormat = files.ARRAYS, at_once: int = 1,
    ) -> dict[int, Any]:  # fmt: skip
        """Return the fit of each seed, read from its file, fitted first if there is none.

        The file `<kind>_<seed>_<hash>` is named by data, split, settings, code and library
        versions.

        Args:
            kind: what is fitted.
            label: label of the progress bar.
            settings: seed of the fit, and of the split that it learns from -> everything else that
                determines it, by its `repr`; the code of its classes counts.
            fit: returns the fits of some seeds, its arguments. Meanwhile scikit-learn has one
                thread: its fits are small, and on a busy machine threads that wait for each other
                cost seven times as much processor time as one.
            form: format of the files; by default a fit is a dictionary of arrays.
            at_once: number of seeds in one call of `fit`.

        Raises:
            ValueError: a damaged file.
        """
        source, versions, paths = self.source, _library_versions(), {}
        for seed, each in settings.items():
            code = digest(["cqbjax.core", "cqbjax.datasets", __name__], each)
            split, rho = files.arrays_digest(source.split(seed)), str(source.rho)
            key = files.hash_parts(*versions, code, source.digest, rho, split, repr(each))
            paths[seed] = self.folder / f"{kind}_{seed}_{key}{form.suffix}"

        def fit_missing(missing: list[int]) -> Iterator[tuple[int, Any]]:
            if at_once == 1:  # fits of several seeds at once are JAX's alone
                import sklearn  # noqa: F401  only loaded libraries are limited
            with self.progress.track_steps(label, len(missing)) as done:
                for start in range(0, len(missing), at_once):
                    seeds = missing[start : start + at_once]
                    with threadpoolctl.threadpool_limits(1):
                        fitted = fit(*seeds)
                    yield from zip(seeds, fitted, strict=True)
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
    return FitData(source, cache_dir / source.dataset, progress or Reporter())


def predict_utilities(
    routers: Mapping[int, Router], data: FitData, label: str = ""
) -> dict[int, dict[str, np.ndarray]]:
    """Fit a router on each seed's offline split, and predict for the prompts of its pool.

    Args:
        routers: seed -> settings.
        data: from `make_fit_data`.
        label: label of the policy, for the progress bar.

    Returns:
        By seed the arguments of `TrainedRouter.make_policy`: `utilities` [I, N], and those of
        `predict_types` of a router on types.
    """

    def fit(seed: int) -> list[dict[str, np.ndarray]]:
        source, parts = data.source, data.source.split(seed)
        fitted = routers[seed].fit(data.offline(parts.offline), rho=source.rho, seed=seed)
        pool = source.embeddings[parts.pool]
        predicted = {"utilities": fitted.predict(pool)}
        if hasattr(fitted, "predict_types"):
            predicted |= fitted.predict_types(pool)
        return [{key: np.asarray(each, np.float32) for key, each in predicted.items()}]

    return data.fit_or_load("router", f"fitting {label}", routers, fit)


def tune_routers(router: Router, data: FitData, seeds: Sequence[int]) -> dict[int, Router]:
    """Cross-validate a router's hyper-parameters on the offline split of each seed."""

    def tune(seed: int) -> list[dict[str, Any]]:
        split = data.offline(data.source.split(seed).offline)
        tuned: Any = router.tune(split, rho=data.source.rho, seed=seed)
        return [dataclasses.asdict(tuned)]

    label, settings = f"tuning {type(router).__name__}", dict.fromkeys(seeds, router)
    tuned = data.fit_or_load("tuned", label, settings, tune, files.JSON)
    return {
        seed: type(router)(**{key: _to_tuple(value) for key, value in fields.items()})
        for seed, fields in tuned.items()
    }


def tune_router(router: Router, data: FitData, seed: int) -> Router:
    """Cross-validate a router's hyper-parameters on the offline split of `seed`."""
    return tune_routers(router, data, [seed])[seed]


def _to_tuple(value: Any) -> Any:
    """Turn JSON's lists back into tuples."""
    return tuple(_to_tuple(each) for each in value) if isinstance(value, list) else value
