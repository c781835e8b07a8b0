"""What the head and the routers are worth before any queue: their error and what they would serve.

Every number is of a seed: what was learnt on its offline split is judged on its own pool. Tables
hold means over seeds with 95% intervals, differences paired by seed.
"""

import dataclasses
import pathlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import polars as pl
import xarray as xr
from sklearn.linear_model import Ridge

from cqbjax.core.types import Policy
from cqbjax.datasets import DatasetSource, Split, mnl_utilities, raw_utility
from cqbjax.offline import Learnt, Projected, Trained, fits, heads, projection
from cqbjax.offline.contrastive import ContrastiveConfig
from cqbjax.offline.fits import Data
from cqbjax.offline.routers import KNN, Router
from cqbjax.offline.routers.knn import mean_of_nearest, neighbours
from cqbjax.policies import Intercept, with_intercept
from cqbjax.results.names import style_of
from cqbjax.results.summaries import mean_ci
from cqbjax.sweeping.progress import Reporter, Silent

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
ORACLE, BEST_FIXED, RANDOM = "oracle", "best fixed on the pool", "random LLM"


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


def head_table(
    source: DatasetSource,
    seeds: Sequence[int],
    cache_dir: pathlib.Path,
    head: ContrastiveConfig,
    progress: Reporter | None = None,
) -> pl.DataFrame:
    """Compare the encoder's embeddings with each seed's projected ones.

    Args:
        source: the dataset.
        seeds: [S] whose heads and pools.
        cache_dir: where heads are kept.
        head: settings.
        progress: told of the training.

    Returns:
        By statistic and features, as `measured` has them: `value` and `change` from the encoder's,
        each with its 95% interval _low and _high.
    """
    progress = progress or Silent()
    data = fits.read(source, cache_dir, progress)
    trained = heads.trained(head, data, list(seeds))
    by_statistic: dict[tuple[str, str], list[float]] = {}
    with progress.steps("nearest neighbours", len(trained)) as done:
        for seed, (params, config) in trained.items():
            z = np.asarray(projection.project(params, data.embeddings, config))
            for statistic, features, value in measured(data.embeddings, z, source, seed):
                by_statistic.setdefault((statistic, features), []).append(value)
            done(1)
    rows = []
    for (statistic, features), values in sorted(by_statistic.items(), key=lambda item: item[0][0]):
        row = _origin(source, len(seeds)) | {"statistic": statistic, "features": features}
        row |= _interval("value", values)
        if features not in ("encoder", "none"):
            row |= _interval("change", np.subtract(values, by_statistic[statistic, "encoder"]))
        rows.append(row)
    return pl.DataFrame(rows, infer_schema_length=None)


def measured(
    x: np.ndarray, z: np.ndarray, source: DatasetSource, seed: int
) -> Iterator[tuple[str, str, float]]:
    """Measure the encoder's x [P, d] and a head's z [P, e] on a seed's pool.

    Yields:
        Statistic, features and value: what `nearest` and `linear` return for "encoder" and "head";
        `linear` for "encoder, intercept", x `with_intercept`, and for "encoder, shrunk",
        the same without its constant coordinate; for "none" the error of the offline split's mean.
    """
    parts = source.split(seed)
    known, truth = source.probabilities[parts.offline], source.probabilities[parts.pool]
    yield "error of the mean", "none", _rms(known.mean(axis=0) - truth)
    for features, table in (("encoder", x), ("head", z)):
        for statistic, value in nearest(table, source, parts).items():
            yield statistic, features, value
        yield "linear routing", features, linear(table[parts.pool], truth)
    extended = np.asarray(with_intercept(jnp.asarray(x[parts.pool]), Intercept.share))
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
    order = neighbours(x[parts.offline], x[parts.pool], usable[-1])
    statistics = {}
    for k, predicted in zip(usable, mean_of_nearest(known, order, usable), strict=True):
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
    size = int(LINEAR_SHARE * len(truth))
    fitted = Ridge(alpha=1.0, fit_intercept=False).fit(x[:size], mnl_utilities(truth[:size]))
    return _reached(fitted.predict(x[size:]), truth[size:])


def seed_table(
    source: DatasetSource,
    routers: Mapping[str, Router],
    seeds: Sequence[int],
    cache_dir: pathlib.Path,
    one_seed: int = ONE_SEED,
    progress: Reporter | None = None,
) -> pl.DataFrame:
    """Judge what each router serves on each seed's pool, beside oracle, best fixed and random.

    Args:
        source: the dataset.
        routers: label -> router.
        seeds: [S] of the pools.
        cache_dir: where fits are kept.
        one_seed: on whose offline split hyper-parameters are chosen once for all seeds.
        progress: told of the fits.

    Returns:
        A row a policy and seed: `departure`, the mean departure probability of the server routed
        to, and `utility`, its mean performance - rho * cost; `chosen`, the hyper-parameters that
        the seed's own split chooses, and `once_...`, the same with those chosen once (null where
        there is nothing to choose). "..., performance only" is the router trained without the
        cost, its hyper-parameters the same.
    """
    progress = progress or Silent()
    data = fits.read(source, cache_dir)
    rows = [row for seed in seeds for row in yardsticks(source, seed)]
    with progress.steps("fitting routers", len(routers) * len(seeds)) as done:
        for label, router in routers.items():
            for seed in seeds:
                rows += _rows(label, router, data, seed, one_seed)
                done(1)
    return pl.DataFrame(rows, infer_schema_length=None)


def _rows(
    label: str, router: Router, data: Data, seed: int, one_seed: int
) -> Iterator[dict[str, Any]]:
    """Judge a router on a seed: tuned on its split, as in a study, tuned once, without cost."""
    own = fits.tuned(router, data, seed)
    row = {"policy": label, "seed": seed} | _judged(own, data, seed, data.source)
    if own != router:
        once = _judged(fits.tuned(router, data, one_seed), data, seed, data.source)
        row |= {f"once_{key}": value for key, value in once.items()}
    yield row
    if label not in OTHER_KNN:
        blind = data._replace(rho=0.0)
        row = {"policy": f"{style_of(label).name}, performance only", "seed": seed}
        yield row | _judged(own, blind, seed, data.source)


def _judged(router: Router, data: Data, seed: int, source: DatasetSource) -> dict[str, Any]:
    """Fit a router on `data` and say what it chose and what it serves in the world of `source`."""
    parts = source.split(seed)
    server = fits.scores({seed: router}, data)[seed].argmax(axis=1)
    return {"chosen": hyper_parameters(router)} | served(source, parts, server)


def yardsticks(source: DatasetSource, seed: int) -> list[dict[str, Any]]:
    """Return the rows of what needs no training: the best of each prompt, of all, and no choice."""
    parts = source.split(seed)
    truth = source.probabilities[parts.pool]
    fixed = np.full(len(truth), truth.mean(axis=0).argmax())
    every = [served(source, parts, np.full(len(truth), j)) for j in range(truth.shape[1])]
    choices = {
        ORACLE: served(source, parts, truth.argmax(axis=1)),
        BEST_FIXED: served(source, parts, fixed),
        RANDOM: {key: float(np.mean([one[key] for one in every])) for key in every[0]},
    }
    return [{"policy": label, "seed": seed} | row for label, row in choices.items()]


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


def router_table(by_seed: pl.DataFrame, source: DatasetSource) -> pl.DataFrame:
    """Average the rows of `seed_table` over seeds.

    Returns:
        By policy: `departure`, `utility`, `over_fixed` (departure probability over that of the best
        fixed server of the pool), `once_departure_gain` and `once_utility_gain` (what choosing
        hyper-parameters once for all seeds would add), each with its interval; `chosen` with how
        many seeds chose it, and `once_chosen`.
    """
    best = by_seed.filter(policy=BEST_FIXED).sort("seed")["departure"]
    rows = []
    for (label,), part in by_seed.group_by("policy", maintain_order=True):
        cell = part.sort("seed")
        row = _origin(source, cell.height) | {"policy": label}
        row |= _interval("departure", cell["departure"]) | _interval("utility", cell["utility"])
        if label != BEST_FIXED:
            row |= _interval("over_fixed", cell["departure"] - best)
        counts = Counter(cell["chosen"].drop_nulls()).most_common()
        listed = [f"{what} ({count})" if len(counts) > 1 else what for what, count in counts]
        row["chosen"] = "; ".join(listed) or None
        if cell["once_chosen"].null_count() == 0:
            row["once_chosen"] = cell["once_chosen"][0]
            for key in ("departure", "utility"):
                row |= _interval(f"once_{key}_gain", cell[f"once_{key}"] - cell[key])
        rows.append(row)
    return pl.DataFrame(rows, infer_schema_length=None)


def _origin(source: DatasetSource, seeds: int) -> dict[str, Any]:
    table = source.table
    size = {"prompts": table.num_prompts, "num_servers": table.num_servers}
    return {"source": table.name, "stand_in": table.stand_in, **size, "seeds": seeds}


def _interval(name: str, values: Sequence[float] | np.ndarray | pl.Series) -> dict[str, Any]:
    """Average over seeds, with Student's t interval; a single seed has none."""
    cell = mean_ci(xr.DataArray(np.asarray(values, float), dims="seed"))
    ends = {"": "mean", "_low": "low", "_high": "high"}
    numbers = {f"{name}{end}": float(cell[part]) for end, part in ends.items()}
    return {key: None if np.isnan(value) else value for key, value in numbers.items()}


def _rms(error: np.ndarray) -> float:
    return float(np.sqrt(np.mean(error**2)))


def _reached(predicted: np.ndarray, truth: np.ndarray) -> float:
    """Average the truth [I, N] over prompts at the server predicted best."""
    return float(truth[np.arange(len(truth)), predicted.argmax(axis=1)].mean())
