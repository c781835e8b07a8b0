"""Prepare the points of a study: instantiate, validate, train and describe them."""

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
from cqbjax.experiments.grid import GridPoint, PreparedPoint, format_words, list_seeds
from cqbjax.experiments.scenario import build_queries, describe_differences, list_settings
from cqbjax.offline import OfflinePolicy, TrainedRouter, fits
from cqbjax.offline.policies import select_untrained, train_policies
from cqbjax.sources import Synthetic

# The paper's settings of a dataset's source; others are described.
PAPER_SETTINGS = {
    "rho": 5.0, "low": 0.1, "high": 0.99, "min_max": True, "repeats": True, "outcome": "attempt",
}  # fmt: skip


class Factory(NamedTuple):
    """Instantiates configurations; the CLI injects it, so this package does not import Hydra.

    Attributes:
        make: configuration -> object.
        cache: objects that all points share, by their configuration; new objects are added.
    """

    make: Callable[[Config], Any]
    cache: dict[str, Any]

    def make_once(self, node: Config) -> Any:
        """Return the shared object of a configuration: points of a dataset share its table."""
        return self.cache_object(str(node), lambda: self.make(node))

    def make_each(self, nodes: Config) -> dict[str, Any]:
        """Return label -> shared object for configurations by label, such as policies."""
        return {str(label): self.make_once(node) for label, node in nodes.items()}

    def cache_object(self, key: str, make: Callable[[], Any]) -> Any:
        """Return the cached object for a key, creating it on first use."""
        if key not in self.cache:
            self.cache[key] = make()
        return self.cache[key]


def assemble_point(
    point: GridPoint, source: Source | DatasetSource,
    policies: Mapping[str, Policy | OfflinePolicy], factory: Factory, study_type: Any,
) -> PreparedPoint:  # fmt: skip
    """Instantiate the recorders, user models and service models of a point.

    Args:
        point: with numeric arrival rates.
        source: source of the point.
        policies: label -> policy.
        factory: instantiates configurations.
        study_type: study type of the point.
    """
    config = point.config
    users, service = (
        tuple(factory.make_each(config[key]).values()) for key in ("users", "service")
    )
    names = [*config.record, *(["queries"] if config.queries else [])]
    recorders = tuple(
        find_recorder(one) if isinstance(one, str) else factory.make_once(one) for one in names
    )
    return PreparedPoint(point, source, policies, recorders, users, service, study_type)


def validate_point(prepared: PreparedPoint) -> SweepSpec:
    """Validate a point before anything is trained or compiled, and return its sweep spec.

    The spec has no policies that have to be trained (`engine.validation.replace_policies` adds
    them).

    Raises:
        ValueError: one sentence, for any value out of range.
    """
    config, source, policies = prepared.point.config, prepared.source, prepared.policies
    untrained = select_untrained(policies)
    if untrained and not isinstance(source, DatasetSource):
        label = next(iter(untrained))
        raise ValueError(f"policy {label} learns from a dataset's offline split: pick a source")
    drawn = build_source(prepared)
    trained = {x: policy for x, policy in add_optimal(policies).items() if x not in untrained}
    memory.check_chunks(config.chunk, config.memory_gb)
    spec = build_spec(
        trained, drawn, list(config.arrival_rate), list_seeds(config), config.horizon, config.K,
        config.record_every, config.capacity, list(prepared.recorders), config.memory_gb,
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


def build_source(prepared: PreparedPoint) -> Source:
    """Return the source of a point's sweep, with arrivals, drift and dynamics."""
    return build_queries(prepared.point.config, prepared.source, prepared.users, prepared.service)


def train_point(
    point: GridPoint,
    source: Source | DatasetSource,
    policies: Mapping[str, Policy | OfflinePolicy],
    progress: Reporter | None = None,
) -> dict[str, Policy | PerSeed]:
    """Return the policies of a point, with offline ones trained for each of its seeds.

    Args:
        point: a validated point.
        source: source of the point.
        policies: label -> policy.
        progress: receives the fits.
    """
    if not select_untrained(policies):
        trained: dict[str, Any] = dict(policies)
        return trained
    assert isinstance(source, DatasetSource)
    config = point.config
    return train_policies(
        policies, source, list(list_seeds(config)), fits.cache_folder(config.cache_dir),
        config.tuning_seed, progress,
    )  # fmt: skip


def describe_tuning(
    point: GridPoint, source: Source | DatasetSource, policies: Mapping[str, Policy | OfflinePolicy]
) -> dict[str, Any]:
    """Return label -> the tuned settings of its routers, each with its number of `seeds`."""
    config = point.config
    if not isinstance(source, DatasetSource):
        return {}
    routers = {label: p.router for label, p in policies.items() if isinstance(p, TrainedRouter)}
    if not routers:
        return {}
    data = fits.make_fit_data(source, fits.cache_folder(config.cache_dir))
    tuning_seed, seeds = config.tuning_seed, list_seeds(config)
    splits = seeds if tuning_seed is None else [tuning_seed] * len(seeds)
    # Policies with the same router share its fits, and so its tuning.
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


def describe_source(prepared: PreparedPoint) -> dict[str, Any]:
    """Return the attributes that describe the provenance of a point's queries."""
    if prepared.attributes is not None:
        return dict(prepared.attributes)
    source, config = prepared.source, prepared.point.config
    named: dict[str, Any]
    # A setting that the grid varies is an attribute already.
    if isinstance(source, DatasetSource):
        table = source.table
        named = {"source": table.name, "stand_in": table.proxy_note}
        named |= {"provenance": table.provenance, SERVERS: join_names(table.servers)}
        settings = {
            key: config.source[key] for key, usual in PAPER_SETTINGS.items()
            if config.source.get(key, usual) != usual
            and f"source.{key}" not in prepared.point.varied
        }  # fmt: skip
        named |= {"source_settings": format_words(settings)} if settings else {}
    elif type(source) is Synthetic:
        named = {"source": "synthetic", "stand_in": "", "provenance": PAPER}
        named["slackness"] = float(config.slackness)
        reference = config.source.get("reference_rate")
        if reference is not None and "source.reference_rate" not in prepared.point.varied:
            named["source_settings"] = format_words({"reference_rate": reference})
    else:
        # The name of a user-defined source has its module, so that it is never taken for ours.
        name = f"{type(source).__module__}.{type(source).__qualname__}"
        name = type(source).__name__ if name.startswith("cqbjax.") else name
        named = {"source": name, "stand_in": "", "provenance": USER_DATA}
        settings = {
            key: value for key, value in list_settings(config.source).items()
            if f"source.{key}" not in prepared.point.varied
        }  # fmt: skip
        named["source_settings"] = format_words(settings)
    return {**named, **describe_differences(config)}


def describe_point(prepared: PreparedPoint) -> Iterator[str]:
    """Yield which policies a point leaves out, a description of its dataset, and its notes."""
    point, source = prepared.point, prepared.source
    for reason in sorted(set(point.left_out.values())):
        names = ", ".join(label for label, why in point.left_out.items() if why == reason)
        yield f"{point.name}: {names} left out ({reason})"
    if isinstance(source, DatasetSource):
        yield source.describe(point.config.K, point.config.arrival_rate)
    yield from prepared.lines
