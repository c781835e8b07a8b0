"""Routers and heads evaluated without a queue: their errors and the value of their routing.

Every number belongs to a seed: a fit on its offline split is evaluated on its own pool.
`value_tables.py` makes tables of these numbers.
"""

import dataclasses
import pathlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import xarray as xr

from cqbjax.core.types import Policy
from cqbjax.datasets import DatasetSource, Split, mnl_utilities, raw_utility
from cqbjax.engine.progress import Reporter
from cqbjax.offline import fits, projection
from cqbjax.offline.contrastive import ContrastiveConfig
from cqbjax.offline.fits import FitData
from cqbjax.offline.policies import OfflinePolicy, ProjectedPolicy, TrainedRouter
from cqbjax.offline.routers import KNN, Router
from cqbjax.offline.routers.knn import TIED, mean_of_nearest
from cqbjax.policies import Intercept, append_intercept

NEIGHBOURS = (1, 10, 100)
# A seed that no reported study uses, for tuning once; compared with tuning on each seed's split.
ONE_SEED = 1_000_000
LINEAR_SHARE = 0.3  # of the pool, on which the linear rule is fitted; it routes the others
# Other ways to choose k, beside the tuned KNN, so that a weak KNN would be noticed.
OTHER_KNN: dict[str, Router] = {
    "KNN, k by error": KNN(criterion="error"),
    "KNN, k = 5": KNN(grid=(5,)),
    "KNN, k = 40": KNN(grid=(40,)),
}
BASELINES = ORACLE, BEST_FIXED, FALLBACK, RANDOM = (
    "oracle", "best fixed on the pool", "best fixed, then another", "random LLM",
)  # fmt: skip
# Prefixes of the variables: tuned as in a study, tuned once for all seeds, trained without cost.
PREFIXES = ("", "once_", "blind_")
AVERAGES = "departure", "within_two", "utility"
NUMBERS = tuple(f"{prefix}{name}" for prefix in PREFIXES for name in AVERAGES)
WORDS = tuple(f"{prefix}chosen" for prefix in PREFIXES)


class OfflineModels(NamedTuple):
    """Models of an experiment that learn offline.

    Attributes:
        routers: label -> router.
        head: settings of the head; None if no policy has one.
    """

    routers: dict[str, Router]
    head: ContrastiveConfig | None


def select_models(policies: Mapping[str, Policy | OfflinePolicy]) -> OfflineModels:
    """Return each router of an experiment once, with `OTHER_KNN` if KNN is one, and the head."""
    routers: dict[str, Router] = {}
    for label, policy in policies.items():
        if isinstance(policy, TrainedRouter) and policy.router not in routers.values():
            routers[label] = policy.router
    if KNN() in routers.values():
        routers |= OTHER_KNN
    heads = [policy.head for policy in policies.values() if isinstance(policy, ProjectedPolicy)]
    return OfflineModels(routers, heads[0] if heads else None)


def evaluate_head(
    source: DatasetSource, seeds: Sequence[int], cache_dir: pathlib.Path, head: ContrastiveConfig,
    progress: Reporter | None = None,
) -> xr.DataArray:  # fmt: skip
    """Evaluate the encoder's embeddings and each seed's projected ones.

    Args:
        source: the dataset.
        seeds: [S] seeds of the heads and pools.
        cache_dir: folder of cached heads.
        head: settings.
        progress: reports the training.

    Returns:
        Over statistic, features and seed, the values of `evaluate_features`; NaN: not measured.
    """
    progress = progress or Reporter()
    data = fits.make_fit_data(source, cache_dir, progress)
    trained = projection.train_heads(head, data, list(seeds))
    values: dict[tuple[str, str], list[float]] = {}
    with progress.track_steps("nearest neighbours", len(trained)) as done:
        for seed, (params, config) in trained.items():
            z = np.asarray(projection.project(params, data.embeddings, config))
            for statistic, features, value in evaluate_features(data.embeddings, z, source, seed):
                values.setdefault((statistic, features), []).append(value)
            done(1)
    statistics, kinds = (list(dict.fromkeys(names)) for names in zip(*values, strict=True))
    table = np.full((len(statistics), len(kinds), len(seeds)), np.nan)
    for (statistic, features), by_seed in values.items():
        table[statistics.index(statistic), kinds.index(features)] = by_seed
    coords = {"statistic": statistics, "features": kinds, "seed": list(seeds)}
    return xr.DataArray(table, coords)


def evaluate_features(
    x: np.ndarray, z: np.ndarray, source: DatasetSource, seed: int
) -> Iterator[tuple[str, str, float]]:
    """Evaluate the encoder's x [P, d] and a head's z [P, e] on a seed's pool.

    Yields:
        Statistic, features and value: those of `evaluate_nearest` and `route_linearly` for
        "encoder" and "head"; of `route_linearly` for "encoder, intercept", x with
        `append_intercept`, and for "encoder, shrunk", the same without its constant coordinate; for
        "none" the error of the offline split's mean.
    """
    parts = source.split(seed)
    known, truth = source.probabilities[parts.offline], source.probabilities[parts.pool]
    yield "error of the mean", "none", float(np.sqrt(np.mean((known.mean(axis=0) - truth) ** 2)))
    for features, table in (("encoder", x), ("head", z)):
        for statistic, value in evaluate_nearest(table, source, parts).items():
            yield statistic, features, value
        yield "linear routing", features, route_linearly(table[parts.pool], truth)
    extended = np.asarray(append_intercept(jnp.asarray(x[parts.pool]), Intercept.share))
    yield "linear routing", "encoder, intercept", route_linearly(extended, truth)
    yield "linear routing", "encoder, shrunk", route_linearly(extended[:, :-1], truth)


def evaluate_nearest(x: np.ndarray, source: DatasetSource, parts: Split) -> dict[str, float]:
    """Predict the pool from the offline split's nearest prompts by cosine of x [P, e].

    Returns:
        Two values for each k. "k-NN error" is the root mean square error, over pool and servers, of
        the mean departure probability of the k nearest prompts. "k-NN routing" is the departure
        probability, averaged over the pool, of the server for which that mean is the greatest.
    """
    known, truth = source.probabilities[parts.offline], source.probabilities[parts.pool]
    usable = tuple(k for k in NEIGHBOURS if k <= len(known))
    statistics = {}
    means = mean_of_nearest(x[parts.offline], known, x[parts.pool], usable)
    for k, predicted in zip(usable, means, strict=True):
        statistics[f"{k}-NN error"] = float(np.sqrt(np.mean((predicted - truth) ** 2)))
        statistics[f"{k}-NN routing"] = average_of_best(predicted, truth)
    return statistics


def route_linearly(x: np.ndarray, truth: np.ndarray) -> float:
    """Route a pool by ridge regression of its log-odds: a proxy of what a linear bandit can learn.

    Args:
        x: [I, e] features of the pool.
        truth: [I, N] its departure probabilities.

    Returns:
        The mean departure probability reached on the last 70% of the pool, fitted with penalty 1
        and without intercept on the first 30%.
    """
    from sklearn.linear_model import Ridge  # slow to import

    size = int(LINEAR_SHARE * len(truth))
    fitted = Ridge(alpha=1.0, fit_intercept=False).fit(x[:size], mnl_utilities(truth[:size]))
    return average_of_best(fitted.predict(x[size:]), truth[size:])


def evaluate_routers(
    source: DatasetSource, routers: Mapping[str, Router], seeds: Sequence[int],
    cache_dir: pathlib.Path, one_seed: int = ONE_SEED, progress: Reporter | None = None,
    prefixes: Collection[str] = PREFIXES,
) -> xr.Dataset:  # fmt: skip
    """Evaluate each router on each seed's pool, beside routing that trains nothing.

    Args:
        source: the dataset.
        routers: label -> router.
        seeds: [S] seeds of the pools.
        cache_dir: folder of cached fits.
        one_seed: seed on whose offline split hyper-parameters are chosen once for all seeds.
        progress: reports the fits.
        prefixes: those of `PREFIXES` to evaluate.

    Returns:
        Variables over policy and seed, which are those of `average_served`; `chosen`, the
        hyper-parameters chosen on the seed's own split; `once_...`, the same with hyper-parameters
        chosen once; and `blind_...`, the same for the router trained without the cost, with the
        hyper-parameters `chosen`. They are NaN, or an empty text, if a router has nothing to choose
        or to train.
    """
    progress = progress or Reporter()
    data = fits.make_fit_data(source, cache_dir)
    shape = len(BASELINES) + len(routers), len(seeds)
    variables = {name: np.full(shape, np.nan) for name in NUMBERS}
    variables |= {name: np.full(shape, "", object) for name in WORDS}
    for column, seed in enumerate(seeds):
        for row, values in enumerate(evaluate_baselines(source, seed).values()):
            for name, value in values.items():
                variables[name][row, column] = value
    with progress.track_steps("fitting routers", len(routers) * len(seeds)) as done:
        for row, (label, router) in enumerate(routers.items(), len(BASELINES)):
            for column, seed in enumerate(seeds):
                ways = _evaluate_ways(label, router, data, seed, one_seed, prefixes)
                for name, value in ways.items():
                    variables[name][row, column] = value
                done(1)
    coords = {"policy": [*BASELINES, *routers], "seed": list(seeds)}
    arrays = {name: (("policy", "seed"), values) for name, values in variables.items()}
    return xr.Dataset(arrays, coords)


def _evaluate_ways(
    label: str, router: Router, data: FitData, seed: int, one_seed: int, prefixes: Collection[str]
) -> dict[str, Any]:
    """Evaluate a router tuned on its split, as in a study, tuned once, and without the cost."""

    def evaluate(prefix: str, router: Router, data: FitData) -> dict[str, Any]:
        predicted = fits.predict_utilities({seed: router}, data)[seed]
        first, second = np.argsort(-predicted, axis=1, kind="stable").T[[0, min(1, servers - 1)]]
        fields = dataclasses.fields(router)  # type: ignore[arg-type]
        grids = [getattr(router, field.name) for field in fields if field.name.endswith("grid")]
        # The fixed grids: k, clusters, layers, or CARROT's k of each estimate.
        chosen = ", ".join(str(grid[0]) for grid in grids if grid)
        values = {"chosen": chosen} | average_served(source, source.split(seed), first, second)
        return {prefix + name: value for name, value in values.items()}

    source, tuned = data.source, fits.tune_router(router, data, seed)
    servers = source.table.num_servers
    values = evaluate("", tuned, data)
    if tuned != router and "once_" in prefixes:
        values |= evaluate("once_", fits.tune_router(router, data, one_seed), data)
    if label not in OTHER_KNN and "blind_" in prefixes:
        values |= evaluate("blind_", tuned, data._replace(rho=0.0))
    return values


def evaluate_baselines(source: DatasetSource, seed: int) -> dict[str, dict[str, float]]:
    """Evaluate routing without training: oracle, one LLM for all, that one with a fallback, random.

    The best LLM, of a prompt or of the pool, is the one with the greatest departure probability. If
    several tie, for example because utilities are cut to [0, 1], it is the one of these with the
    greatest utility. The fallback is the LLM that leaves the fewest prompts unsatisfied by both.
    """
    parts = source.split(seed)
    truth = source.probabilities[parts.pool]
    utility = raw_utility(source.table.performance, source.cost, source.rho)[parts.pool]
    best = np.where(_is_largest(truth), utility, -np.inf).argmax(axis=1)
    mean = np.where(_is_largest(truth.mean(axis=0)), utility.mean(axis=0), -np.inf)
    everyone = np.ones(len(truth), int)
    fixed = mean.argmax() * everyone
    left = ((1 - truth[:, fixed[:1]]) * (1 - truth)).mean(axis=0)
    left[fixed[0]] = np.inf
    every = [average_served(source, parts, j * everyone) for j in range(truth.shape[1])]
    random = {key: float(np.mean([one[key] for one in every])) for key in every[0]}
    random["within_two"] = float(np.mean(1 - (1 - truth.mean(axis=1)) ** 2))
    return {
        ORACLE: average_served(source, parts, best),
        BEST_FIXED: average_served(source, parts, fixed),
        FALLBACK: average_served(source, parts, fixed, left.argmin() * everyone),
        RANDOM: random,
    }


def average_served(
    source: DatasetSource, parts: Split, server: np.ndarray, second: np.ndarray | None = None
) -> dict[str, float]:
    """Average over the pool what a query is served.

    Args:
        source: the dataset.
        parts: the pool of I prompts.
        server: [I] LLM of the first attempt.
        second: [I] LLM of the second one; None: the same again.

    Returns:
        Of the first attempt `departure`, the mean departure probability, and `utility`, the mean
        performance - rho * cost; and `within_two`, the mean probability to depart in two attempts,
        which succeed independently.
    """
    utility = raw_utility(source.table.performance, source.cost, source.rho)
    once = source.probabilities[parts.pool, server]
    again = once if second is None else source.probabilities[parts.pool, second]
    return {
        "departure": float(once.mean()),
        "within_two": float(np.mean(1 - (1 - once) * (1 - again))),
        "utility": float(utility[parts.pool, server].mean()),
    }


def average_of_best(predicted: np.ndarray, truth: np.ndarray) -> float:
    """Average the truth [I, N] over prompts and over the servers predicted best."""
    return float(np.average(truth, axis=1, weights=_is_largest(predicted)).mean())


def _is_largest(values: np.ndarray) -> np.ndarray:
    """Return which values [..., N] are the largest of the last axis, or tie with it."""
    return values >= values.max(axis=-1, keepdims=True) - TIED
