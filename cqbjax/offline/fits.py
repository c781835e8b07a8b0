"""Fits, made once a seed and kept under a key of all that they depend on.

A fit knows neither K nor the arrival rate: the points of a study share it.
"""

import collections
import contextlib
import dataclasses
import functools
import importlib.metadata
import pathlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import threadpoolctl

from cqbjax.core.code import digest
from cqbjax.core.files import (
    ARRAY,
    JSON,
    FileFormat,
    arrays_digest,
    check_writable,
    hash_parts,
    load_or_compute_all,
    user_cache,
)
from cqbjax.engine.progress import Reporter
from cqbjax.offline.routers.base import OfflineSplit, Router, is_on_departures

if TYPE_CHECKING:  # how a dataset is read decides no fit, what was read does
    from cqbjax.datasets import DatasetSource

# Libraries whose versions are part of a fit's key.
FITTING = ("scikit-learn", "scipy", "jax", "flax", "optax", "numpy")


class Data(NamedTuple):
    """What fits are made from.

    Attributes:
        source: the dataset.
        embeddings: [P, d] float32.
        rho: weight of the cost in what is learnt.
        folder: where fits are kept.
        progress: told of the fits.
    """

    source: "DatasetSource"
    embeddings: np.ndarray
    rho: float
    folder: pathlib.Path
    progress: Reporter

    def offline(self, rows: np.ndarray) -> OfflineSplit:
        """Return what a router may learn from: these rows of the table."""
        source = self.source
        return OfflineSplit(
            self.embeddings[rows], source.table.performance[rows], source.cost[rows],
            source.probabilities[rows],
        )  # fmt: skip

    def path(
        self, seed: int, form: FileFormat, module: str, settings: Sequence[Any]
    ) -> pathlib.Path:
        """Return the file of a fit, named by data, split, settings, code and library versions.

        Args:
            seed: of the fit, and of the split that it learns from.
            form: of the file.
            module: that makes the fit; its code counts, and that of the settings' classes.
            settings: whatever else decides what comes out, by its `repr`.
        """
        words = (*_versions(), digest([module], *settings), self.source.digest, str(seed))
        split = arrays_digest(self.source.split(seed))
        return self.folder / f"{hash_parts(*words, split, *map(repr, settings))}{form.suffix}"


@functools.cache
def _versions() -> tuple[str, ...]:
    return tuple(f"{name} {importlib.metadata.version(name)}" for name in FITTING)


def cache_folder(cache_dir: str | None) -> pathlib.Path:
    """Return where fits are kept: `cache_dir`, or a folder of the user's cache.

    Raises:
        ValueError: `cache_dir` cannot be written.
    """
    if cache_dir is None:
        return user_cache() / "fits"
    return check_writable(pathlib.Path(cache_dir), "cache_dir")


def read(
    source: "DatasetSource", cache_dir: pathlib.Path, progress: Reporter | None = None
) -> Data:
    """Return what a dataset's fits are made from; they lie in `cache_dir/<dataset>/`."""
    folder = cache_dir / source.dataset
    return Data(source, source.embeddings, source.rho, folder, progress or Reporter())


def kept(
    data: Data,
    what: str,
    paths: Mapping[int, pathlib.Path],
    form: FileFormat,
    fit: Callable[[Sequence[int]], Iterable[Any]],
    at_once: int = 1,
) -> dict[int, Any]:
    """Return what was fitted for each seed, read from its file, where need be fitted first.

    Args:
        data: from `read`.
        what: is being done, for the progress bar.
        paths: seed -> file, from `Data.path`.
        form: of the files.
        fit: fits for some seeds, in their order.
        at_once: seeds that are fitted together.

    Raises:
        ValueError: a damaged file.
    """

    def fitted(missing: list[int]) -> Iterator[tuple[int, Any]]:
        with data.progress.track_steps(what, len(missing)) as done:
            for start in range(0, len(missing), at_once):
                some = missing[start : start + at_once]
                yield from zip(some, list(fit(some)), strict=True)
                done(len(some))

    return load_or_compute_all(paths, fitted, form)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Let scikit-learn fit on one thread.

    Its fits are small: on a busy machine threads that wait for each other cost seven times as much
    processor time as one.
    """
    import sklearn  # noqa: F401  threads are limited of what is loaded

    with threadpoolctl.threadpool_limits(1):
        yield


def pool_scores(
    label: str, router: Router, data: Data, seeds: Sequence[int], tuning_seed: int | None
) -> list[np.ndarray]:
    """Return each seed's predicted utilities [I, N] of its pool.

    Args:
        label: of the policy, for the progress bar.
        router: settings.
        data: from `read`.
        seeds: [S] of the runs.
        tuning_seed: whose offline split chooses the hyper-parameters; None is each seed's own.
    """
    with warned_once(len(seeds)):
        if tuning_seed is None:
            routers = tuned_each(router, data, seeds)
        else:
            routers = dict.fromkeys(seeds, tuned(router, data, tuning_seed))
        return list(scores(routers, data, label).values())


@contextlib.contextmanager
def warned_once(seeds: int) -> Iterator[None]:
    """Say at the end what fits warned of: each sentence once, and of how many of the seeds."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    said = collections.Counter((one.category, str(one.message)) for one in caught)
    for (category, sentence), many in said.items():
        warnings.warn(f"{sentence} ({many} of {seeds} seeds)", category, stacklevel=3)


def scores(routers: Mapping[int, Router], data: Data, label: str = "") -> dict[int, np.ndarray]:
    """Return seed -> predicted utilities [I, N] of its pool, fitted on its offline split or kept.

    Args:
        routers: seed -> settings.
        data: from `read`.
        label: of the policy, for the progress bar.
    """

    def fit(seeds: Sequence[int]) -> Iterator[np.ndarray]:
        for seed in seeds:
            split = data.source.split(seed)
            with one_thread():
                fitted = routers[seed].fit(data.offline(split.offline), rho=data.rho, seed=seed)
                predicted = fitted.predict(data.embeddings[split.pool])
            yield np.asarray(predicted, np.float32)

    paths = {
        seed: data.path(seed, ARRAY, __name__, _settings(router, data))
        for seed, router in routers.items()
    }
    return kept(data, f"fitting {label}", paths, ARRAY, fit)


def tuned_each(router: Router, data: Data, seeds: Sequence[int]) -> dict[int, Router]:
    """Return seed -> the router with hyper-parameters cross-validated on its offline split."""

    def tune(seeds: Sequence[int]) -> Iterator[dict[str, Any]]:
        for seed in seeds:
            split = data.offline(data.source.split(seed).offline)
            with one_thread():
                chosen: Any = router.tune(split, rho=data.rho, seed=seed)
            yield dataclasses.asdict(chosen)

    settings = ("tuned", *_settings(router, data))
    paths = {seed: data.path(seed, JSON, __name__, settings) for seed in seeds}
    chosen = kept(data, f"tuning {type(router).__name__}", paths, JSON, tune)
    return {
        seed: type(router)(**{key: _frozen(value) for key, value in fields.items()})
        for seed, fields in chosen.items()
    }


def tuned(router: Router, data: Data, seed: int) -> Router:
    """Return the router with hyper-parameters cross-validated on the offline split of `seed`."""
    return tuned_each(router, data, [seed])[seed]


def _settings(router: Router, data: Data) -> tuple[Any, ...]:
    """Return what decides a router's fit, beside scores and costs."""
    on_departures = is_on_departures(router)
    return router, data.rho, *([data.source.departure_digest] if on_departures else [])


def _frozen(value: Any) -> Any:
    """Turn JSON's lists back into tuples."""
    return tuple(_frozen(each) for each in value) if isinstance(value, list) else value
