"""A study type: the value of routers and of the contrastive head, without a queue.

Every number belongs to a seed: a fit on its offline split is evaluated on its own pool
(`router_tables`).
"""

import dataclasses
import pathlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
import polars as pl
import xarray as xr
from sklearn.linear_model import Ridge

from cqbjax.core.files import hash_parts
from cqbjax.core.types import Policy
from cqbjax.datasets import DatasetSource, Split, mnl_utilities
from cqbjax.engine.progress import Reporter
from cqbjax.experiments import grid, manifests
from cqbjax.experiments.configs import ComposedConfig, Config, select
from cqbjax.experiments.grid import GridPoint, PreparedPoint
from cqbjax.experiments.study import Factory
from cqbjax.experiments.study_types import OutputTable, StudyOutput, StudyType
from cqbjax.experiments.validation import to_list
from cqbjax.offline import TrainedRouter, fits, projection, value
from cqbjax.offline.contrastive import ContrastiveConfig
from cqbjax.offline.policies import OfflinePolicy, ProjectedPolicy
from cqbjax.offline.routers import KNN, Router
from cqbjax.offline.routers.knn import mean_of_nearest
from cqbjax.offline.value import interval_columns
from cqbjax.policies import Intercept, append_intercept
from cqbjax.results.index import CacheKey
from cqbjax.results.summaries import find_differing
from reproduction import router_tables

NEIGHBOURS = (1, 10, 100)
LINEAR_SHARE = 0.3  # of the pool, on which the linear rule is fitted; it routes the others


def select_models(
    policies: Mapping[str, Policy | OfflinePolicy],
) -> tuple[dict[str, Router], ContrastiveConfig | None]:
    """Return a study's routers, each once, with `OTHER_KNN` beside KNN, and its head."""
    routers: dict[str, Router] = {}
    for label, policy in policies.items():
        if isinstance(policy, TrainedRouter) and policy.router not in routers.values():
            routers[label] = policy.router
    if KNN() in routers.values():
        routers |= router_tables.OTHER_KNN
    heads = [policy.head for policy in policies.values() if isinstance(policy, ProjectedPolicy)]
    return routers, heads[0] if heads else None


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
        for seed, params in trained.items():
            z = np.asarray(projection.project(params, data.embeddings, head))
            for statistic, features, number in evaluate_features(data.embeddings, z, source, seed):
                values.setdefault((statistic, features), []).append(number)
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
        for statistic, number in evaluate_nearest(table, source, parts).items():
            yield statistic, features, number
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
    size = int(LINEAR_SHARE * len(truth))
    fitted = Ridge(alpha=1.0, fit_intercept=False).fit(x[:size], mnl_utilities(truth[:size]))
    return average_of_best(fitted.predict(x[size:]), truth[size:])


def average_of_best(predicted: np.ndarray, truth: np.ndarray) -> float:
    """Average the truth [I, N] over prompts and over the servers predicted best."""
    return float(np.average(truth, axis=1, weights=value.is_largest(predicted)).mean())


def head_table(values: xr.DataArray, origin: Mapping[str, Any]) -> pl.DataFrame:
    """Compare the encoder's embeddings with each seed's projected ones.

    Args:
        values: from `evaluate_head`.
        origin: columns that identify the dataset.

    Returns:
        By statistic and features: `value` and `change` from the encoder's, each with its 95%
        interval _low and _high.
    """
    rows = []
    for statistic in sorted(values["statistic"].values.tolist()):
        measured = values.sel(statistic=statistic).dropna("features")
        for features in measured["features"].values.tolist():
            cell = measured.sel(features=features).values
            row = dict(origin) | {"seeds": len(cell), "statistic": statistic, "features": features}
            row |= interval_columns("value", cell)
            if features not in ("encoder", "none"):
                row |= interval_columns("change", cell - measured.sel(features="encoder").values)
            rows.append(row)
    return pl.DataFrame(rows, infer_schema_length=None)


@dataclasses.dataclass(frozen=True)
class OfflineValue(StudyType):
    """The error of features and the value of routers, trained on each seed's offline split.

    Attributes:
        head: settings of the head; None: those of the policy with a head, or the key `head`.
    """

    head: Any = None

    # There is no queue.
    display_keys: ClassVar[tuple[str, ...]] = (
        "K", "arrival_rate", "arrivals", "horizon", "record_every", "capacity", "explore_rounds",
        "burst", "burst_rounds", "batch_most", "batch_sizes", "trace", "trace_column", "kind.head",
    )  # fmt: skip
    unread_keys: ClassVar[tuple[str, ...]] = ("*",)
    read_keys: ClassVar[tuple[str, ...]] = (
        "policy", "policies_by_K", "source", "head", "num_seeds", "first_seed", "tuning_seed",
    )  # fmt: skip

    def compose(
        self, points: Sequence[GridPoint], config: ComposedConfig, swept: Mapping[str, Any]
    ) -> list[GridPoint]:
        """Return a point for each combination of the source's lists, with the first of others."""
        keys = [key for key in config.get("grid") or () if not key.startswith("source.")]
        config = config.with_values({key: to_list(select(config, key))[0] for key in keys})
        config["grid"] = [key for key in config.get("grid") or () if key not in keys]
        return grid.compose(config, swept)

    def prepare(self, point: GridPoint, factory: Factory) -> PreparedPoint:
        """Return a point whose policies are the baselines and each router once."""
        config = point.config
        source, policies = factory.make_once(config.source), factory.make_each(config.policy)
        routers, head = select_models(policies)
        trained = {label: TrainedRouter(router) for label, router in routers.items()}
        attributes = None
        if isinstance(source, DatasetSource):
            table = source.table
            attributes = {
                "source": table.name, "stand_in": table.proxy_note, "prompts": table.num_prompts,
                "num_servers": table.num_servers, "provenance": table.provenance,
            }  # fmt: skip
        own = dataclasses.replace(self, head=head or factory.make(config.head))
        rates, labels = grid.resolve_rates(point, source), dict.fromkeys(value.BASELINES) | trained
        return PreparedPoint(rates, source, labels, study_type=own, attributes=attributes)

    def validate(self, prepared: PreparedPoint) -> None:
        """Raise for a source without an offline split."""
        if not isinstance(prepared.source, DatasetSource):
            why = "kind=offline_value is of a dataset: pick a source, source=routerbench"
            raise ValueError(why)

    def cache_key(self, prepared: PreparedPoint) -> CacheKey:
        """Return the cache key, with the settings of the head."""
        key = manifests.cache_key_of(prepared)
        return key._replace(point=hash_parts(key.point, repr(self.head)))

    def count_rounds(self, prepared: PreparedPoint) -> int:
        """Return 0: no round is simulated."""
        return 0

    def divide(
        self, prepared: Sequence[PreparedPoint], min_shards: int = 1
    ) -> list[list[PreparedPoint]]:
        """Divide points one by one: their fits are cached elsewhere."""
        return [[one] for one in prepared]

    def measure(self, prepared: PreparedPoint, progress: Reporter) -> xr.Dataset:
        """Train and evaluate, seed by seed."""
        config, seeds = prepared.point.config, grid.list_seeds(prepared.point.config)
        routers = {k: one.router for k, one in prepared.policies.items() if one is not None}
        one_seed = router_tables.ONE_SEED if config.tuning_seed is None else int(config.tuning_seed)
        fixed = prepared.source, seeds, fits.cache_folder(config.cache_dir)
        # The table shows the choice of every seed.
        warnings.filterwarnings("ignore", message=".*of its grid")
        head = evaluate_head(*fixed, self.head, progress)
        data = router_tables.evaluate_routers(
            prepared.source, routers, *fixed[1:], one_seed, progress
        )
        return data.assign(head=head)

    def show(self, points: Sequence[xr.Dataset], config: Config) -> StudyOutput:
        """Return tables of the error of features, of the value of routers, and of each seed."""
        title, keys = f"{config.title or config.name}, trained offline", find_differing(points)
        shown = dict.fromkeys((*keys, "source", "stand_in", "prompts", "num_servers"))
        parts: dict[str, list[pl.DataFrame]] = {"head": [], "routers": [], "seeds": []}
        for point in points:
            origin = {key: point.attrs.get(key) for key in shown}
            by_seed = router_tables.seed_table(point)
            parts["head"].append(head_table(point["head"], origin))
            parts["routers"].append(router_tables.router_table(by_seed, origin))
            varied = (pl.lit(point.attrs.get(key)).alias(key) for key in keys)
            parts["seeds"].append(by_seed.select(*varied, pl.all()))
        captions = {"head": title, "routers": title, "seeds": ""}
        tables = {
            name: OutputTable(pl.concat(parts[name]), caption, caption != "")
            for name, caption in captions.items()
        }
        return StudyOutput(tables, {})
