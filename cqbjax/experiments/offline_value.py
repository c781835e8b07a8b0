"""A study type: the value of routers and of the contrastive head, without a queue."""

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import xarray as xr

from cqbjax.core.files import hash_parts
from cqbjax.datasets import DatasetSource
from cqbjax.engine.progress import Reporter
from cqbjax.experiments import grid, manifests
from cqbjax.experiments.configs import ComposedConfig, Config, select
from cqbjax.experiments.grid import GridPoint, PreparedPoint
from cqbjax.experiments.study import Factory
from cqbjax.experiments.study_types import OutputTable, StudyOutput, StudyType
from cqbjax.experiments.validation import to_list
from cqbjax.offline import TrainedRouter, fits
from cqbjax.results.index import CacheKey


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
    code_modules: ClassVar[tuple[str, ...] | None] = ("cqbjax.offline.value",)

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
        from cqbjax.offline import value

        config = point.config
        source, policies = factory.make_once(config.source), factory.policies(config.policy)
        models = value.select_models(policies)
        routers = {label: TrainedRouter(router) for label, router in models.routers.items()}
        study_type = dataclasses.replace(self, head=models.head or factory.make(config.head))
        attributes = None
        if isinstance(source, DatasetSource):
            table = source.table
            size = {"prompts": table.num_prompts, "num_servers": table.num_servers}
            attributes = {"source": table.name, "stand_in": table.proxy_note, **size}
            attributes["provenance"] = table.provenance
        return PreparedPoint(
            grid.resolve_rates(point, source), source, dict.fromkeys(value.BASELINES) | routers,
            study_type=study_type, attributes=attributes,
        )  # fmt: skip

    def validate(self, prepared: PreparedPoint) -> None:
        """Raise for a source without an offline split."""
        if not isinstance(prepared.source, DatasetSource):
            raise ValueError(
                "kind=offline_value is of a dataset: pick a source, source=routerbench"
            )

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
        from cqbjax.offline import value

        config, seeds = prepared.point.config, grid.list_seeds(prepared.point.config)
        routers = {k: one.router for k, one in prepared.policies.items() if one is not None}
        one_seed = value.ONE_SEED if config.tuning_seed is None else int(config.tuning_seed)
        fixed = prepared.source, seeds, fits.cache_folder(config.cache_dir)
        # The table shows the choice of every seed.
        warnings.filterwarnings("ignore", message=".*of its grid")
        head = value.evaluate_head(*fixed, self.head, progress)
        data = value.evaluate_routers(prepared.source, routers, *fixed[1:], one_seed, progress)
        return data.assign(head=head)

    def show(self, points: Sequence[xr.Dataset], config: Config) -> StudyOutput:
        """Return tables of the error of features, of the value of routers, and of each seed."""
        import polars as pl

        from cqbjax.offline import value_tables as tables
        from cqbjax.results.summaries import find_differing

        title, keys = f"{config.title or config.name}, trained offline", find_differing(points)
        shown = dict.fromkeys((*keys, "source", "stand_in", "prompts", "num_servers"))
        parts: dict[str, list[pl.DataFrame]] = {"head": [], "routers": [], "seeds": []}
        for point in points:
            origin = {key: point.attrs.get(key) for key in shown}
            by_seed = tables.seed_table(point)
            parts["head"].append(tables.head_table(point["head"], origin))
            parts["routers"].append(tables.router_table(by_seed, origin))
            varied = (pl.lit(point.attrs.get(key)).alias(key) for key in keys)
            parts["seeds"].append(by_seed.select(*varied, pl.all()))
        whole = {name: pl.concat(each) for name, each in parts.items()}
        return StudyOutput(
            {
                "head": OutputTable(whole["head"], title),
                "routers": OutputTable(whole["routers"], title),
                "seeds": OutputTable(whole["seeds"], "", printed=False),
            },
            {},
        )
