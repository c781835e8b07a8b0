"""The points of a study: what their configuration names is made, checked and trained.

Their study type (`study_types.py`) does the rest. Other modules compose them (`grid.py`), run them
shard by shard (`shards.py`), hash and describe them (`manifests.py`) and show them (`display.py`).
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from cqbjax.core.labels import PAPER, SERVERS, USER_DATA, join_names
from cqbjax.core.types import Policy, Source
from cqbjax.datasets import DatasetSource
from cqbjax.engine import memory
from cqbjax.engine.progress import Reporter
from cqbjax.engine.spec import PerSeed, SweepSpec
from cqbjax.engine.validation import add_optimal, build_spec, find_recorder
from cqbjax.experiments.configs import Config
from cqbjax.experiments.grid import GridPoint, PreparedPoint, list_seeds
from cqbjax.experiments.grid import format_words as told_of_grid
from cqbjax.experiments.scenario import build_queries, describe_differences, list_settings
from cqbjax.offline import OfflinePolicy, TrainedRouter, fits
from cqbjax.offline.policies import train_policies
from cqbjax.sources import Synthetic

# Settings of a dataset's source that are said where they are not the paper's.
OF_PAPER = {"min_max": True, "repeats": True, "outcome": "attempt"}


def validate_point(ready: PreparedPoint) -> SweepSpec:
    """Validate a point before anything is trained or compiled, and return its sweep spec.

    Args:
        ready: a settled point, with all that is made of its configuration.

    Returns:
        The spec without the policies that are not trained yet (`engine.validation.replace_policies`
        adds them).

    Raises:
        ValueError: in one sentence, for anything out of range.
    """
    point, source, policies, recorders, *_ = ready
    config, untrained = point.config, select_learnt(policies)
    if untrained and not isinstance(source, DatasetSource):
        label = next(iter(untrained))
        raise ValueError(f"policy {label} learns from a dataset's offline split: pick a source")
    drawn = build_source(ready)
    wanted = add_optimal(policies)
    others = {label: policy for label, policy in wanted.items() if label not in untrained}
    memory.check_chunks(config.chunk, config.memory_gb)
    spec = build_spec(
        others, drawn, list(config.arrival_rate), list_seeds(config), config.horizon, config.K,
        config.record_every, config.capacity, list(recorders), config.memory_gb,
    )  # fmt: skip
    for policy in untrained.values():
        policy.check(spec.problem)
    first = spec.records.every
    if min(config.table_rounds) < min(first, config.horizon):
        raise ValueError(
            f"table_rounds={config.table_rounds} must not lie before round {first}, the first one "
            "recorded: raise it, or lower record_every"
        )
    return spec


def build_source(ready: PreparedPoint) -> Source:
    """Return what a point's sweep draws from."""
    return build_queries(ready.point.config, ready.source, ready.users, ready.service)


def select_learnt(policies: Mapping[str, Policy | OfflinePolicy]) -> dict[str, OfflinePolicy]:
    """Return those of the policies that are trained offline."""
    return {
        label: policy for label, policy in policies.items() if isinstance(policy, OfflinePolicy)
    }


def train_point(
    point: GridPoint,
    source: Source | DatasetSource,
    policies: Mapping[str, Policy | OfflinePolicy],
    progress: Reporter | None = None,
) -> dict[str, Policy | PerSeed]:
    """Return the policies of a point, those that learn offline trained for each of its seeds.

    Args:
        point: from `settle`.
        source: made from `point.config.source`.
        policies: label -> policy, made from `point.config.policy`; `check_point` has passed them.
        progress: told of the fits.
    """
    if not select_learnt(policies):
        ready: dict[str, Any] = dict(policies)
        return ready
    assert isinstance(source, DatasetSource)
    config = point.config
    return train_policies(
        policies, source, list(list_seeds(config)), fits.cache_folder(config.cache_dir),
        config.tuning_seed, progress,
    )  # fmt: skip


def describe_tuning(
    point: GridPoint, source: Source | DatasetSource, policies: Mapping[str, Policy | OfflinePolicy]
) -> dict[str, Any]:
    """Return label -> the routers that `train` fitted, as they were tuned.

    A router is a list of settings, each with how many `seeds` were fitted with it.
    """
    config = point.config
    if not isinstance(source, DatasetSource):
        return {}
    routers = {label: p.router for label, p in policies.items() if isinstance(p, TrainedRouter)}
    if not routers:
        return {}
    data = fits.make_fit_data(source, fits.cache_folder(config.cache_dir))
    splits = [
        config.tuning_seed if config.tuning_seed is not None else s for s in list_seeds(config)
    ]
    # Both pairings of a router share its fits, and so its tuning.
    counts = {
        router: Counter(fits.tune_router(router, data, split) for split in splits)
        for router in set(routers.values())
    }
    return {
        label: [
            {"router": type(one).__name__, "seeds": count} | dataclasses.asdict(one)  # type: ignore[call-overload]
            for one, count in counts[router].most_common()
        ]
        for label, router in routers.items()
    }


def describe_source(ready: PreparedPoint) -> dict[str, Any]:
    """Return the attributes that say where a point's queries come from."""
    if ready.attributes is not None:
        return dict(ready.attributes)
    source, config = ready.source, ready.point.config
    own = describe_differences(config)
    if isinstance(source, DatasetSource):
        table = source.table
        named = {"provenance": table.provenance, SERVERS: join_names(table.servers)}
        # An axis of the grid says so itself.
        odd = {
            key: config.source[key] for key, usual in OF_PAPER.items()
            if config.source.get(key, usual) != usual and f"source.{key}" not in ready.point.varied
        }  # fmt: skip
        named |= {"source_settings": told_of_grid(odd)} if odd else {}
        return {"source": table.name, "stand_in": table.proxy_note, **named, **own}
    if type(source) is Synthetic:
        slackness = float(config.slackness)
        named = {"source": "synthetic", "stand_in": "", "provenance": PAPER}
        return {**named, "slackness": slackness, **own}
    # A source of one's own has its module in its name, so that it is never taken for the paper's.
    kind = type(source)
    own_name = f"{kind.__module__}.{kind.__qualname__}"
    name = kind.__name__ if own_name.startswith("cqbjax.") else own_name
    values = told_of_grid(list_settings(config.source))
    named = {"source": name, "stand_in": "", "provenance": USER_DATA}
    return {**named, "source_settings": values, **own}


class Factory(NamedTuple):
    """What makes objects of configurations; how that is done the commands alone know.

    Attributes:
        make: makes an object of its configuration.
        policies: makes policies of theirs, by label.
        cache: what was made once for all points, by its configuration; new things are added.
    """

    make: Callable[[Config], Any]
    policies: Callable[[Config], Mapping[str, Policy | OfflinePolicy]]
    cache: dict[str, Any]

    def make_once(self, node: Config) -> Any:
        """Return what a configuration makes, made once: points of a dataset share one table."""
        return self.cache_object(str(node), lambda: self.make(node))

    def cache_object(self, key: str, make: Callable[[], Any]) -> Any:
        """Return what was kept under a key, or make it and keep it."""
        if key not in self.cache:
            self.cache[key] = make()
        return self.cache[key]


def assemble_point(
    point: GridPoint, source: Source | DatasetSource,
    policies: Mapping[str, Policy | OfflinePolicy], factory: Factory, kind: Any,
) -> PreparedPoint:  # fmt: skip
    """Return a settled point with what is made of its configuration.

    Args:
        point: from `settle`.
        source: of it.
        policies: label -> policy.
        factory: makes recorders, users and service.
        kind: of study.
    """
    config, make = point.config, factory.make_once
    users, service = (tuple(map(make, config[key].values())) for key in ("users", "service"))
    asked = [*config.record, *(["queries"] if config.queries else [])]
    recorders = tuple(find_recorder(one) if isinstance(one, str) else make(one) for one in asked)
    return PreparedPoint(point, source, policies, recorders, users, service, kind)


def describe_point(ready: PreparedPoint) -> Iterator[str]:
    """Yield what a point leaves out, and what is known of its dataset."""
    point, source = ready.point, ready.source
    for reason in sorted(set(point.left_out.values())):
        names = ", ".join(label for label, why in point.left_out.items() if why == reason)
        yield f"{point.name}: {names} left out ({reason})"
    if isinstance(source, DatasetSource):
        yield source.describe(point.config.K, point.config.arrival_rate)
    yield from ready.lines
