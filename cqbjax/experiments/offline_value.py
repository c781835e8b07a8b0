"""A kind of study: what routers and the contrastive head are worth before any queue."""

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import xarray as xr

from cqbjax.core.files import hash_parts
from cqbjax.datasets import DatasetSource
from cqbjax.engine.progress import Reporter
from cqbjax.experiments import grid, manifests
from cqbjax.experiments.configs import Composed, Config, select
from cqbjax.experiments.grid import GridPoint, PreparedPoint
from cqbjax.experiments.study import Factory
from cqbjax.experiments.study_types import OutputTable, StudyOutput, StudyType
from cqbjax.experiments.validation import to_list
from cqbjax.offline import TrainedRouter, fits
from cqbjax.results.index import CacheKey


@dataclasses.dataclass(frozen=True)
class OfflineValue(StudyType):
    """The error of features and the value of routers, each learnt on a seed's offline split.

    Attributes:
        head: settings of the head; None: those of the policy that has one, or the key `head`.
    """

    head: Any = None

    # Nothing queues here.
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
        self, points: Sequence[GridPoint], config: Composed, swept: Mapping[str, Any]
    ) -> list[GridPoint]:
        """Return a point for each combination of the source's lists alone."""
        del points
        keys = [key for key in config.get("grid") or () if not key.startswith("source.")]
        config = config.at({key: to_list(select(config, key))[0] for key in keys})
        config["grid"] = [key for key in config.get("grid") or () if key not in keys]
        return grid.compose(config, swept)

    def prepare(self, point: GridPoint, factory: Factory) -> PreparedPoint:
        """Return a point with its yardsticks and routers, each of these once."""
        from cqbjax.offline import value

        config = point.config
        source, policies = factory.make_once(config.source), factory.policies(config.policy)
        chosen = value.select_models(policies)
        judged = dict.fromkeys(value.BASELINES) | {
            label: TrainedRouter(router) for label, router in chosen.routers.items()
        }
        own = dataclasses.replace(self, head=chosen.head or factory.make(config.head))
        told = None
        if isinstance(source, DatasetSource):
            table = source.table
            size = {"prompts": table.num_prompts, "num_servers": table.num_servers}
            told = {"source": table.name, "stand_in": table.proxy_note, **size}
            told["provenance"] = table.provenance
        return PreparedPoint(
            grid.resolve_rates(point, source), source, judged, kind=own, attributes=told
        )

    def validate(self, ready: PreparedPoint) -> None:
        """Refuse a source that has no offline split."""
        if not isinstance(ready.source, DatasetSource):
            raise ValueError(
                "kind=offline_value is of a dataset: pick a source, source=routerbench"
            )

    def cache_key(self, ready: PreparedPoint) -> CacheKey:
        """Return the hash of all that a point's numbers follow from, with the head's settings."""
        made = manifests.cache_key_of(ready)
        return made._replace(point=hash_parts(made.point, repr(self.head)))

    def count_rounds(self, ready: PreparedPoint) -> int:
        """Return that no round is simulated."""
        del ready
        return 0

    def divide(self, ready: Sequence[PreparedPoint], fewest: int = 1) -> list[list[PreparedPoint]]:
        """Divide points one by one: fits are kept by themselves."""
        del fewest
        return [[one] for one in ready]

    def measure(self, ready: PreparedPoint, progress: Reporter) -> xr.Dataset:
        """Fit and judge, seed by seed."""
        from cqbjax.offline import value

        config, seeds = ready.point.config, grid.list_seeds(ready.point.config)
        routers = {k: one.router for k, one in ready.policies.items() if one is not None}
        one_seed = value.ONE_SEED if config.tuning_seed is None else int(config.tuning_seed)
        fixed = ready.source, seeds, fits.cache_folder(config.cache_dir)
        # The table shows what every seed chose.
        warnings.filterwarnings("ignore", message=".*of its grid")
        head = value.evaluate_head(*fixed, self.head, progress)
        made = value.evaluate_routers(ready.source, routers, *fixed[1:], one_seed, progress)
        return made.assign(head=head)

    def show(self, points: Sequence[xr.Dataset], config: Config) -> StudyOutput:
        """Return the error of features, the value of routers, and that seed by seed."""
        import polars as pl

        from cqbjax.offline import value_tables as tables
        from cqbjax.results.summaries import find_differing

        title, keys = f"{config.title or config.name}, trained offline", find_differing(points)
        told = dict.fromkeys((*keys, "source", "stand_in", "prompts", "num_servers"))
        parts: dict[str, list[pl.DataFrame]] = {"head": [], "routers": [], "seeds": []}
        for point in points:
            origin = {key: point.attrs.get(key) for key in told}
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
