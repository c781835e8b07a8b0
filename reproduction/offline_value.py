"""A study type: the value of routers, without a queue: means over seeds with 95% intervals.

Every number belongs to a seed: a fit on its offline split is evaluated on its own pool.
"""

import dataclasses
import pathlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import polars as pl
import xarray as xr

from cqbjax.core.types import Policy
from cqbjax.datasets import DatasetSource
from cqbjax.engine.progress import Reporter
from cqbjax.experiments import grid
from cqbjax.experiments.configs import ComposedConfig, Config, select
from cqbjax.experiments.grid import GridPoint, PreparedPoint
from cqbjax.experiments.study import Factory
from cqbjax.experiments.study_types import OutputTable, StudyOutput, StudyType
from cqbjax.experiments.validation import to_list
from cqbjax.offline import TrainedRouter, fits, value
from cqbjax.offline.policies import OfflinePolicy
from cqbjax.offline.routers import Router
from cqbjax.offline.value import AVERAGES, BASELINES, BEST_FIXED, average_seeds
from cqbjax.results.summaries import find_differing


def select_routers(policies: Mapping[str, Policy | OfflinePolicy]) -> dict[str, Router]:
    """Return a study's routers, each once."""
    routers: dict[str, Router] = {}
    for label, policy in policies.items():
        if isinstance(policy, TrainedRouter) and policy.router not in routers.values():
            routers[label] = policy.router
    return routers


def evaluate_routers(
    source: DatasetSource, routers: Mapping[str, Router], seeds: Sequence[int],
    cache_dir: pathlib.Path, progress: Reporter | None = None,
) -> xr.Dataset:  # fmt: skip
    """Evaluate each router on each seed's pool, beside routing that trains nothing.

    Args:
        source: the dataset.
        routers: label -> router.
        seeds: [S] seeds of the pools.
        cache_dir: folder of cached fits.
        progress: reports the fits.

    Returns:
        Variables over policy and seed, which are those of `average_served`, and `chosen`, the
        hyper-parameters chosen on the seed's own split; an empty text if there are none.
    """
    progress, labels = progress or Reporter(), [*BASELINES, *routers]
    data = fits.make_fit_data(source, cache_dir)
    rows: dict[str, list[dict[str, Any]]] = {label: [] for label in labels}
    for seed in seeds:
        for label, numbers in value.evaluate_baselines(source, seed).items():
            rows[label].append(numbers | {"chosen": ""})
    with progress.track_steps("fitting routers", len(routers) * len(seeds)) as done:
        for label, router in routers.items():
            for seed in seeds:
                tuned = fits.tune_router(router, data, seed)
                numbers = value.evaluate_router(tuned, data, seed)
                rows[label].append(numbers | {"chosen": describe_choice(tuned)})
                done(1)
    arrays = {
        name: (("policy", "seed"), np.array([[row[name] for row in rows[x]] for x in labels]))
        for name in (*AVERAGES, "chosen")
    }
    return xr.Dataset(arrays, {"policy": labels, "seed": list(seeds)})


def describe_choice(tuned: Router) -> str:
    """Return the values to which a router's grids are fixed: k, clusters, layers, or both k."""
    fields = dataclasses.fields(tuned)  # type: ignore[arg-type]
    grids = [getattr(tuned, field.name) for field in fields if field.name.endswith("grid")]
    return ", ".join(str(grid[0]) for grid in grids if grid)


def seed_table(values: xr.Dataset) -> pl.DataFrame:
    """Return a row per policy and seed of `evaluate_routers`."""
    runs = values.stack(run=("policy", "seed"))
    rows = {name: runs[name].values.tolist() for name in ("policy", "seed", *AVERAGES, "chosen")}
    return pl.DataFrame(rows).with_columns(pl.col("chosen").replace("", None))


def router_table(by_seed: pl.DataFrame, origin: Mapping[str, Any]) -> pl.DataFrame:
    """Average the rows of `seed_table` over seeds.

    Args:
        by_seed: the rows.
        origin: columns that identify the dataset.

    Returns:
        By policy: `departure`, `within_two`, `utility` and `over_fixed` (departure probability over
        that of the best fixed server of the pool), each with its interval; `chosen` with how many
        seeds chose it.
    """
    best = by_seed.filter(policy=BEST_FIXED).sort("seed")["departure"]
    rows = []
    for (label,), part in by_seed.group_by("policy", maintain_order=True):
        cell = part.sort("seed")
        row = dict(origin) | {"seeds": cell.height, "policy": label}
        row |= average_seeds(cell, None if label == BEST_FIXED else best)
        counts = Counter(cell["chosen"].drop_nulls()).most_common()
        listed = [f"{what} ({count})" if len(counts) > 1 else what for what, count in counts]
        rows.append(row | {"chosen": "; ".join(listed) or None})
    return pl.DataFrame(rows, infer_schema_length=None)


@dataclasses.dataclass(frozen=True)
class OfflineValue(StudyType):
    """The value of routers, trained on each seed's offline split."""

    # There is no queue.
    display_keys: ClassVar[tuple[str, ...]] = (
        "K", "arrival_rate", "arrivals", "horizon", "record_every", "capacity", "explore_rounds",
        "burst", "burst_rounds", "batch_most", "batch_sizes", "trace", "trace_column",
    )  # fmt: skip
    unread_keys: ClassVar[tuple[str, ...]] = ("*",)
    read_keys: ClassVar[tuple[str, ...]] = (
        "policy", "policies_by_K", "source", "num_seeds", "first_seed",
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
        source = factory.make_once(point.config.source)
        routers = select_routers(factory.make_each(point.config.policy))
        trained = {label: TrainedRouter(router) for label, router in routers.items()}
        attributes = None
        if isinstance(source, DatasetSource):
            table = source.table
            attributes = {
                "source": table.name, "stand_in": table.proxy_note, "prompts": table.num_prompts,
                "num_servers": table.num_servers, "provenance": table.provenance,
            }  # fmt: skip
        rates, labels = grid.resolve_rates(point, source), dict.fromkeys(BASELINES) | trained
        return PreparedPoint(rates, source, labels, study_type=self, attributes=attributes)

    def validate(self, prepared: PreparedPoint) -> None:
        """Raise for a source without an offline split."""
        if not isinstance(prepared.source, DatasetSource):
            why = "kind=offline_value is of a dataset: pick a source, source=routerbench"
            raise ValueError(why)

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
        config = prepared.point.config
        routers = {k: one.router for k, one in prepared.policies.items() if one is not None}
        folder = fits.cache_folder(config.cache_dir)
        seeds = grid.list_seeds(config)
        return evaluate_routers(prepared.source, routers, seeds, folder, progress)

    def show(self, points: Sequence[xr.Dataset], config: Config) -> StudyOutput:
        """Return tables of the value of routers, on average and of each seed."""
        title, keys = f"{config.title or config.name}, trained offline", find_differing(points)
        shown = dict.fromkeys((*keys, "source", "stand_in", "prompts", "num_servers"))
        averages, seeds = [], []
        for point in points:
            by_seed = seed_table(point)
            averages.append(router_table(by_seed, {key: point.attrs.get(key) for key in shown}))
            varied = (pl.lit(point.attrs.get(key)).alias(key) for key in keys)
            seeds.append(by_seed.select(*varied, pl.all()))
        tables = {
            "routers": OutputTable(pl.concat(averages), title),
            "seeds": OutputTable(pl.concat(seeds), "", printed=False),
        }
        return StudyOutput(tables, {})
