"""Prepare the points of a study: instantiate, validate, train and describe them.

The scenario of a point is its source with arrivals, drift, and user and service dynamics.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from cqbjax import sources
from cqbjax.core.inputs import UNSET
from cqbjax.core.labels import PAPER, SERVERS, USER_DATA, join_names
from cqbjax.core.scenario import with_dynamics
from cqbjax.core.types import Policy, Source
from cqbjax.datasets import DatasetSource
from cqbjax.datasets.times import read_times
from cqbjax.engine import memory
from cqbjax.engine.progress import Reporter
from cqbjax.engine.spec import PerSeed, SweepSpec
from cqbjax.engine.validation import add_optimal, build_spec, find_recorder
from cqbjax.experiments import grid
from cqbjax.experiments.configs import Config
from cqbjax.experiments.grid import GridPoint, PreparedPoint, format_words, list_seeds
from cqbjax.experiments.validation import PAPER_DYNAMICS
from cqbjax.offline import OfflinePolicy, fits
from cqbjax.offline.policies import select_untrained, train_policies

# The paper's settings of a dataset's source, and of the synthetic one; others are described.
PAPER_SETTINGS = {
    "rho": 5.0, "low": 0.1, "high": 0.99, "min_max": True, "repeats": True, "outcome": "attempt",
    "reference_rate": None,
}  # fmt: skip
PROCESSES = ("bernoulli", "bursty", "batches", "trace")
DRIFT = ("jump_at", "quarter")
# Settings that name a file, and settings that replace another one.
TABLES = ("delays", "latencies")
REPLACED = {"delays": "return_rate", "latencies": "rounds", "classes": "success"}


class Factory(NamedTuple):
    """Instantiates configurations; the CLI injects it, so this package does not import Hydra.

    Attributes:
        make: configuration -> object.
        cache: objects that all points share, by their configuration; new objects are added.
    """

    make: Callable[[Config], Any]
    cache: dict[str, Any]

    def make_once(self, node: Any, make: Callable[[Any], Any] | None = None) -> Any:
        """Return the shared object of a configuration: points of a dataset share its table.

        Args:
            node: the configuration, or another argument of `make` whose text names the object.
            make: what creates it on first use; None: `self.make`.
        """
        key = str(node)
        if key not in self.cache:
            self.cache[key] = (make or self.make)(node)
        return self.cache[key]

    def make_each(self, nodes: Config) -> dict[str, Any]:
        """Return label -> shared object for configurations by label, such as policies."""
        return {str(label): self.make_once(node) for label, node in nodes.items()}


def assemble_point(
    point: GridPoint, source: Source | DatasetSource,
    policies: Mapping[str, Policy | OfflinePolicy], factory: Factory, study_type: Any,
) -> PreparedPoint:  # fmt: skip
    """Instantiate the recorders, user models and service models of a point.

    Args:
        point: the grid point.
        source: source of the point.
        policies: label -> policy.
        factory: instantiates configurations.
        study_type: study type of the point.
    """
    point = grid.resolve_rates(point, source)
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
    """Return the source of a point's sweep, with arrivals, drift and dynamics.

    Raises:
        ValueError: `arrivals` is not one of the processes, or the trace cannot be read.
    """
    config, source = prepared.point.config, prepared.source
    drawn: Any = source.queries if isinstance(source, DatasetSource) else source
    drift = {key: config.drift[key] for key in DRIFT if config.drift[key] is not None}
    if drift:
        drawn = sources.DriftWrapper(source=drawn, **drift)
    process = _build_process(config)
    if process is not None:
        drawn = sources.ArrivalWrapper(source=drawn, process=process)
    return with_dynamics(drawn, prepared.users, prepared.service)


def train_point(
    prepared: PreparedPoint, progress: Reporter | None = None
) -> Mapping[str, Policy | PerSeed]:
    """Return the policies of a validated point, with offline ones trained for each of its seeds."""
    policies, config = prepared.policies, prepared.point.config
    if not select_untrained(policies):
        return policies
    return train_policies(
        policies, prepared.source, list(list_seeds(config)), fits.cache_folder(config.cache_dir),
        config.tuning_seed, progress,
    )  # fmt: skip


def describe_source(prepared: PreparedPoint) -> dict[str, Any]:
    """Return the attributes that describe the provenance of a point's queries."""
    if prepared.attributes is not None:
        return dict(prepared.attributes)
    source, config = prepared.source, prepared.point.config
    name, proxy_note, provenance = "synthetic", "", PAPER
    more: dict[str, Any] = {}
    settings = {
        key: config.source[key] for key, usual in PAPER_SETTINGS.items()
        if config.source.get(key, usual) != usual
    }  # fmt: skip
    if isinstance(source, DatasetSource):
        table = source.table
        name, proxy_note, provenance = table.name, table.proxy_note, table.provenance
        more = {SERVERS: join_names(table.servers)}
    elif type(source) is sources.Synthetic:
        more = {"slackness": float(config.slackness)}
    else:
        # The name of a user-defined source has its module, so that it is never taken for ours.
        name = f"{type(source).__module__}.{type(source).__qualname__}"
        name = type(source).__name__ if name.startswith("cqbjax.") else name
        provenance, more = USER_DATA, {"source_settings": ""}
        settings = list_settings(config.source)
    # A setting that the grid varies is an attribute already.
    varied = prepared.point.varied
    settings = {key: value for key, value in settings.items() if f"source.{key}" not in varied}
    more |= {"source_settings": format_words(settings)} if settings else {}
    named = {"source": name, "stand_in": proxy_note, "provenance": provenance}
    return {**named, **more, **describe_differences(config)}


def describe_point(prepared: PreparedPoint) -> Iterator[str]:
    """Yield which policies a point leaves out, a description of its dataset, and its notes."""
    point, source = prepared.point, prepared.source
    for reason in sorted(set(point.left_out.values())):
        names = ", ".join(label for label, why in point.left_out.items() if why == reason)
        yield f"{point.name}: {names} left out ({reason})"
    if isinstance(source, DatasetSource):
        yield source.describe(point.config.K, point.config.arrival_rate)
    yield from prepared.lines


def _build_process(config: Config) -> Any:
    """Return the arrival process; None for Bernoulli arrivals."""
    if config.arrivals not in PROCESSES:
        raise ValueError(f"arrivals={config.arrivals} must be one of {', '.join(PROCESSES)}")
    if config.arrivals == "bernoulli":
        return None
    if config.arrivals == "bursty":
        return sources.BurstyArrivals(burst=config.burst, burst_rounds=config.burst_rounds)
    if config.arrivals == "batches":
        return sources.BatchArrivals(most=config.batch_most, sizes=list(config.batch_sizes) or None)
    if config.trace is None:
        raise ValueError("arrivals=trace needs trace=FILE, a table with a column of times")
    return sources.convert_trace(read_times(config.trace, config.trace_column))


def describe_differences(config: Config) -> dict[str, str]:
    """Describe where arrivals, drift and dynamics differ from the paper's, by key."""
    differences = {}
    if config.arrivals == "bursty":
        differences["arrivals"] = f"bursty ({config.burst:g}, {config.burst_rounds:g} rounds)"
    elif config.arrivals == "batches":
        sizes = list(config.batch_sizes)
        differences["arrivals"] = f"batches {sizes}" if sizes else "Poisson"
    elif config.arrivals == "trace":
        differences["arrivals"] = f"trace {Path(config.trace).stem}"
    drift = [f"{key} {config.drift[key]:g}" for key in DRIFT if config.drift[key] is not None]
    if drift:
        differences["drift"] = ", ".join(drift)
    for group, of_paper in PAPER_DYNAMICS.items():
        models = []
        for name, node in config[group].items():
            # Only settings that have an effect.
            read = {key: value for key, value in list_settings(node).items() if value not in UNSET}
            words = ", ".join(f"{key} {value}" for key, value in read.items())
            if name != of_paper:
                models.append(f"{name} ({words})" if words else name)
        if models:
            differences[group] = " and ".join(models)
    return differences


def list_settings(node: Config) -> dict[str, Any]:
    """Return the settings of a source or model that are read, with file names for paths."""
    settings = {
        str(key): value for key, value in node.items()
        if key != "_target_" and value not in (None, [])
    }  # fmt: skip
    settings |= {key: Path(settings[key]).name for key in TABLES if key in settings}
    unread = {old for new, old in REPLACED.items() if new in settings}
    return {key: value for key, value in settings.items() if key not in unread}
