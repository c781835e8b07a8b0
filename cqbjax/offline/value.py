"""What the head and the routers are worth before any queue: their error and what they would serve.

Every number is of a seed: what was learnt on its offline split is judged on its own pool. What is
told of them is in `value_tables.py`.
"""

import dataclasses
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import xarray as xr

from cqbjax.core.types import Policy
from cqbjax.datasets import DatasetSource, Split, mnl_utilities, raw_utility
from cqbjax.engine.progress import Reporter
from cqbjax.offline import fits, heads, projection
from cqbjax.offline.contrastive import ContrastiveConfig
from cqbjax.offline.fits import Data
from cqbjax.offline.policies import Learnt, Projected, Trained
from cqbjax.offline.routers import KNN, Router
from cqbjax.offline.routers.knn import TIED, mean_of_nearest
from cqbjax.policies import Intercept, append_intercept

NEIGHBOURS = (1, 10, 100)
# Of no reported study: the one tuning that tuning on every seed's own split is compared with.
ONE_SEED = 1_000_000
LINEAR_SHARE = 0.3  # of the pool, on which the linear rule is fitted; it routes the others
# A weak KNN would be noticed: beside the tuned one, other ways to choose k.
OTHER_KNN: dict[str, Router] = {
    "KNN, k by error": KNN(criterion="error"),
    "KNN, k = 5": KNN(grid=(5,)),
    "KNN, k = 40": KNN(grid=(40,)),
}
YARDSTICKS = ORACLE, BEST_FIXED, RANDOM = "oracle", "best fixed on the pool", "random LLM"
# How a router is tuned and trained: as in a study, tuned once for all seeds, without the cost.
WAYS = ("", "once_", "blind_")
NUMBERS = tuple(f"{way}{what}" for way in WAYS for what in ("departure", "utility"))
WORDS = tuple(f"{way}chosen" for way in WAYS)


class Chosen(NamedTuple):
    """What an experiment names that learns offline.

    Attributes:
        routers: label -> router.
        head: settings of the head; None where no policy has one.
    """

    routers: dict[str, Router]
    head: ContrastiveConfig | None


def chosen_of(policies: Mapping[str, Policy | Learnt]) -> Chosen:
    """Return each router of an experiment once, with more of KNN, and the head's settings."""
    routers: dict[str, Router] = {}
    for label, policy in policies.items():
        if isinstance(policy, Trained) and policy.router not in routers.values():
            routers[label] = policy.router
    if KNN() in routers.values():
        routers |= OTHER_KNN
    settings = [policy.head for policy in policies.values() if isinstance(policy, Projected)]
    return Chosen(routers, settings[0] if settings else None)


def of_head(
    source: DatasetSource,
    seeds: Sequence[int],
    cache_dir: pathlib.Path,
    head: ContrastiveConfig,
    progress: Reporter | None = None,
) -> xr.DataArray:
    """Measure the encoder's embeddings and each seed's projected ones.

    Args:
        source: the dataset.
        seeds: [S] whose heads and pools.
        cache_dir: where heads are kept.
        head: settings.
        progress: told of the training.

    Returns:
        Over statistic, features and seed, what `measured` yields; NaN is not measured.
    """
    progress = progress or Reporter()
    data = fits.read(source, cache_dir, progress)
    trained = heads.trained(head, data, list(seeds))
    values: dict[tuple[str, str], list[float]] = {}
    with progress.track_steps("nearest neighbours", len(trained)) as done:
        for seed, (params, config) in trained.items():
            z = np.asarray(projection.project(params, data.embeddings, config))
            for statistic, features, value in measured(data.embeddings, z, source, seed):
                values.setdefault((statistic, features), []).append(value)
            done(1)
    statistics, kinds = (list(dict.fromkeys(names)) for names in zip(*values, strict=True))
    table = np.full((len(statistics), len(kinds), len(seeds)), np.nan)
    for (statistic, features), by_seed in values.items():
        table[statistics.index(statistic), kinds.index(features)] = by_seed
    coords = {"statistic": statistics, "features": kinds, "seed": list(seeds)}
    return xr.DataArray(table, coords)


def measured(
    x: np.ndarray, z: np.ndarray, source: DatasetSource, seed: int
) -> Iterator[tuple[str, str, float]]:
    """Measure the encoder's x [P, d] and a head's z [P, e] on a seed's pool.

    Yields:
        Statistic, features and value: what `nearest` and `linear` return for "encoder" and "head";
        `linear` for "encoder, intercept", x `append_intercept`, and for "encoder, shrunk",
        the same without its constant coordinate; for "none" the error of the offline split's mean.
    """
    parts = source.split(seed)
    known, truth = source.probabilities[parts.offline], source.probabilities[parts.pool]
    yield "error of the mean", "none", _rms(known.mean(axis=0) - truth)
    for features, table in (("encoder", x), ("head", z)):
        for statistic, value in nearest(table, source, parts).items():
            yield statistic, features, value
        yield "linear routing", features, linear(table[parts.pool], truth)
    extended = np.asarray(append_intercept(jnp.asarray(x[parts.pool]), Intercept.share))
    yield "linear routing", "encoder, intercept", linear(extended, truth)
    yield "linear routing", "encoder, shrunk", linear(extended[:, :-1], truth)


def nearest(x: np.ndarray, source: DatasetSource, parts: Split) -> dict[str, float]:
    """Predict the pool from the offline split's nearest prompts by cosine of x [P, e].

    Returns:
        "k-NN error": root mean square over pool and servers of the mean departure probability of
        the k nearest minus the truth; "k-NN routing": the departure probability, averaged over the
        pool, of the server for which that mean is the greatest.
    """
    known, truth = source.probabilities[parts.offline], source.probabilities[parts.pool]
    usable = tuple(k for k in NEIGHBOURS if k <= len(known))
    statistics = {}
    means = mean_of_nearest(x[parts.offline], known, x[parts.pool], usable)
    for k, predicted in zip(usable, means, strict=True):
        statistics[f"{k}-NN error"] = _rms(predicted - truth)
        statistics[f"{k}-NN routing"] = _reached(predicted, truth)
    return statistics


def linear(x: np.ndarray, truth: np.ndarray) -> float:
    """Route a pool by ridge regression of its log-odds: a proxy of what a linear bandit can learn.

    Args:
        x: [I, e] features of the pool.
        truth: [I, N] its departure probabilities.

    Returns:
        The mean departure probability reached on the last 70% of the pool, fitted with penalty 1
        and without intercept on the first 30%.
    """
    from sklearn.linear_model import Ridge  # slow to import: where one fits

    size = int(LINEAR_SHARE * len(truth))
    fitted = Ridge(alpha=1.0, fit_intercept=False).fit(x[:size], mnl_utilities(truth[:size]))
    return _reached(fitted.predict(x[size:]), truth[size:])


def of_routers(
    source: DatasetSource,
    routers: Mapping[str, Router],
    seeds: Sequence[int],
    cache_dir: pathlib.Path,
    one_seed: int = ONE_SEED,
    progress: Reporter | None = None,
) -> xr.Dataset:
    """Judge what each router serves on each seed's pool, beside oracle, best fixed and random.

    Args:
        source: the dataset.
        routers: label -> router.
        seeds: [S] of the pools.
        cache_dir: where fits are kept.
        one_seed: on whose offline split hyper-parameters are chosen once for all seeds.
        progress: told of the fits.

    Returns:
        Over policy and seed `departure`, the mean departure probability of the server routed to,
        and `utility`, its mean performance - rho * cost; `chosen`, the hyper-parameters that the
        seed's own split chooses; `once_...`, the same with those chosen once; and `blind_...`, of
        the router trained without the cost, its hyper-parameters the same. NaN, and no word, where
        there is nothing to choose or to train.
    """
    progress = progress or Reporter()
    data = fits.read(source, cache_dir)
    shape = len(YARDSTICKS) + len(routers), len(seeds)
    made = {name: np.full(shape, np.nan) for name in NUMBERS}
    made |= {name: np.full(shape, "", object) for name in WORDS}
    for column, seed in enumerate(seeds):
        for row, values in enumerate(yardsticks(source, seed).values()):
            for name, value in values.items():
                made[name][row, column] = value
    with progress.track_steps("fitting routers", len(routers) * len(seeds)) as done:
        for row, (label, router) in enumerate(routers.items(), len(YARDSTICKS)):
            for column, seed in enumerate(seeds):
                for name, value in _of_router(label, router, data, seed, one_seed).items():
                    made[name][row, column] = value
                done(1)
    coords = {"policy": [*YARDSTICKS, *routers], "seed": list(seeds)}
    return xr.Dataset({n: (("policy", "seed"), of) for n, of in made.items()}, coords)


def _of_router(label: str, router: Router, data: Data, seed: int, one_seed: int) -> dict[str, Any]:
    """Judge a router on a seed: tuned on its split, as in a study, tuned once, without cost."""
    own = fits.tuned(router, data, seed)
    made = _judged(own, data, seed, data.source)
    if own != router:
        once = _judged(fits.tuned(router, data, one_seed), data, seed, data.source)
        made |= {f"once_{key}": value for key, value in once.items()}
    if label not in OTHER_KNN:
        blind = _judged(own, data._replace(rho=0.0), seed, data.source)
        made |= {f"blind_{key}": value for key, value in blind.items()}
    return made


def _judged(router: Router, data: Data, seed: int, source: DatasetSource) -> dict[str, Any]:
    """Fit a router on `data` and say what it chose and what it serves in the world of `source`."""
    parts = source.split(seed)
    server = fits.scores({seed: router}, data)[seed].argmax(axis=1)
    return {"chosen": hyper_parameters(router)} | served(source, parts, server)


def yardsticks(source: DatasetSource, seed: int) -> dict[str, dict[str, float]]:
    """Return what needs no training: the best of each prompt, of all, and no choice.

    Best is the LLM of the greatest departure probability; of several, as where utilities are cut
    to [0, 1], the one of the greatest utility.
    """
    parts = source.split(seed)
    truth = source.probabilities[parts.pool]
    utility = raw_utility(source.table.performance, source.cost, source.rho)[parts.pool]
    best = np.where(_is_largest(truth), utility, -np.inf).argmax(axis=1)
    mean = np.where(_is_largest(truth.mean(axis=0)), utility.mean(axis=0), -np.inf)
    fixed = np.full(len(truth), mean.argmax())
    every = [served(source, parts, np.full(len(truth), j)) for j in range(truth.shape[1])]
    return {
        ORACLE: served(source, parts, best),
        BEST_FIXED: served(source, parts, fixed),
        RANDOM: {key: float(np.mean([one[key] for one in every])) for key in every[0]},
    }


def served(source: DatasetSource, parts: Split, server: np.ndarray) -> dict[str, float]:
    """Average departure probability and raw utility over the pool when `server` [I] serves it."""
    utility = raw_utility(source.table.performance, source.cost, source.rho)
    return {
        "departure": float(source.probabilities[parts.pool, server].mean()),
        "utility": float(utility[parts.pool, server].mean()),
    }


def hyper_parameters(router: Router) -> str:
    """Write the fixed grids of a router: k, clusters, layers, or CARROT's k of each estimate."""
    fields = dataclasses.fields(router)  # type: ignore[arg-type]
    grids = [getattr(router, field.name) for field in fields if field.name.endswith("grid")]
    return ", ".join(str(grid[0]) for grid in grids if grid)


def _rms(error: np.ndarray) -> float:
    return float(np.sqrt(np.mean(error**2)))


def _reached(predicted: np.ndarray, truth: np.ndarray) -> float:
    """Average the truth [I, N] over prompts and over the servers predicted best."""
    return float(np.average(truth, axis=1, weights=_is_largest(predicted)).mean())


def _is_largest(values: np.ndarray) -> np.ndarray:
    """Mark the largest value [..., N] of the last axis, and those that tie with it."""
    return values >= values.max(axis=-1, keepdims=True) - TIED
