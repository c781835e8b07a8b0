"""Jobs of a command, the studies they form, and the grid points of a study.

A grid point is one combination of the values of list-valued keys. Its runs compile together and are
stored together. This module imports nothing heavy: a wrong value is reported before JAX is loaded.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from cqbjax.core.labels import PAPER, split_label
from cqbjax.experiments import validation
from cqbjax.experiments.configs import ComposedConfig, Config, exploration_length, select
from cqbjax.experiments.validation import BY_RULE, DIMENSIONS, to_list

if TYPE_CHECKING:
    from cqbjax.core.recorders import Recorder
    from cqbjax.core.scenario import ServiceModel, UserModel
    from cqbjax.core.types import Source
    from cqbjax.datasets import DatasetSource
    from cqbjax.engine.spec import SweepSpec

# Defined for K = 1; a point with another K leaves them out and says so.
SINGLE_SERVER = ("q_ucb", "q_ths")
# Policies that no key changes unless it names them.
SCALE = ("optimal", "random")


class Job(NamedTuple):
    """One configuration that a command runs.

    Attributes:
        config: composed; its key `grid` names the keys whose list spans a grid.
        swept: the keys in which the jobs of a multirun differ, with the values of this job.
        words: overrides of the job, `key=value`.
        searched: whether a search needs its objective.
    """

    config: ComposedConfig
    swept: Mapping[str, Any]
    words: Sequence[str]
    searched: bool = False


@dataclasses.dataclass(frozen=True)
class GridPoint:
    """One combination of the grid.

    Attributes:
        name: name under which the point is stored, such as `K=1,num_servers=3`.
        config: the resolved configuration; grid keys have one value.
        varied: the values here of keys in which points of the study differ.
        left_out: policies that do not run at this point, each with the reason.
        keys: cache keys, hashed on first use: of the point under "", of each policy under its
            label. An edit of the code during the run does not change them.
        dimensions: the arrival rate or policies that distinguish it from points of a multirun with
            the same name, as text.
        requested: if only some arrival rates and seeds run, the configuration with all of them.
    """

    name: str
    config: Config
    varied: dict[str, Any]
    left_out: dict[str, str]
    keys: dict[str, str] = dataclasses.field(default_factory=dict, compare=False, repr=False)
    dimensions: str = ""
    requested: Config | None = dataclasses.field(default=None, compare=False, repr=False)

    @property
    def label(self) -> str:
        """Its name, followed by the arrival rate or policies that a multirun varies."""
        return f"{self.name},{self.dimensions}" if self.dimensions else self.name


class PreparedPoint(NamedTuple):
    """A grid point with the objects that run at it.

    Attributes:
        point: the grid point, with numeric arrival rates.
        source: instantiated from its configuration.
        policies: label -> policy; those that learn offline are not trained yet.
        recorders: in addition to the standard ones.
        users: user models.
        service: service models.
        study_type: a `study_types.StudyType`, which runs it.
        attributes: provenance of its queries; None: described by its source.
        lines: messages that are printed before it runs.
        spec: its validated sweep spec without untrained policies, from `StudyType.validate`.
    """

    point: GridPoint
    source: Any
    policies: Mapping[str, Any]
    recorders: "tuple[Recorder, ...]" = ()
    users: "tuple[UserModel, ...]" = ()
    service: "tuple[ServiceModel, ...]" = ()
    study_type: Any = None
    attributes: Mapping[str, Any] | None = None
    lines: Sequence[str] = ()
    spec: "SweepSpec | None" = None


@dataclasses.dataclass
class Study:
    """The jobs with one name.

    Attributes:
        jobs: in their order.
        config: the configuration of the first job.
        strict: whether an invalid point stops the study; otherwise it is skipped.
        points: points of each job; None for a job that was skipped.
        skipped: a message for each job or point that was skipped.
    """

    jobs: Sequence[Job]
    config: ComposedConfig
    strict: bool
    points: list[list[GridPoint] | None] = dataclasses.field(default_factory=list)
    skipped: list[str] = dataclasses.field(default_factory=list)

    def attempt(self, function: Callable[..., list[Any]], job: Job, *values: Any) -> Any:
        """Return `function(job, *values)`, or None after a ValueError, whose message is stored.

        Raises:
            ValueError: the same, if the study is strict.
        """
        try:
            return function(job, *values)
        except ValueError as error:
            message = validation.name_typed_key(str(error), job.words, job.config)
            if self.strict:
                raise (error if message == str(error) else ValueError(message)) from error
            self.skipped.append(f"{format_words(job.swept)} left out: {message}")
            return None


def compose_studies(
    jobs: Sequence[Job], check_words: Callable[[Sequence[str], Iterable[ComposedConfig]], None]
) -> list[Study]:
    """Group jobs by name, and compose their points.

    Args:
        jobs: jobs of a command.
        check_words: raises if a key among the overrides is read by none of the configurations.

    Raises:
        ValueError: a wrong key or value.
    """
    studies = []
    for name in dict.fromkeys(job.config.name for job in jobs):
        same_name = [job for job in jobs if job.config.name == name]
        if len({str(job.config.kind.get("_target_")) for job in same_name}) > 1:
            raise ValueError(f"name={name} has several types of study: give each its own name")
        config = same_name[0].config
        study = Study(same_name, config, len(same_name) == 1 or bool(config.fail_fast))
        for job in same_name:
            study.points.append(study.attempt(lambda job: compose(job.config, job.swept), job))
        # After the values, because it may import the class that reads a key, and so JAX.
        check_words(same_name[0].words, [job.config for job in same_name])
        studies.append(study)
    return studies


def compose(config: ComposedConfig, swept: Mapping[str, Any] | None = None) -> list[GridPoint]:
    """Return the points of a configuration, one for each combination of its grid's lists.

    Args:
        config: configuration of the study; its key `grid` names the keys `a.b.c` whose list spans
            the grid.
        swept: the keys that the command sweeps, with their values in this configuration. One
            command runs several configurations, which differ in these keys.

    Raises:
        ValueError: a key has a value that is not allowed, or no policy runs at a point.
    """
    values = {key: select(config, key) for key in config.get("grid") or ()}
    grid = {key: value for key, value in values.items() if isinstance(value, list)}
    for key, value in grid.items():
        if not value or len({str(one) for one in value}) < len(value):
            raise ValueError(f"{key}={value} must be a value or a list of distinct ones")
    points = []
    for one_of_each in itertools.product(*grid.values()):
        combination = dict(zip(grid, one_of_each, strict=True))
        resolved = config.with_values(combination)
        point = Config(resolved)
        point.pop("grid", None)
        for error in (e for path, e in resolved.errors.items() if path[0] != "policy"):
            raise error
        validation.validate_keys(point)
        point.arrival_rate = list_rates(point)
        left_out = find_left_out(point)
        for label in left_out:
            del point.policy[label]
        if not point.policy:
            reasons = ", ".join(f"{label} ({reason})" for label, reason in left_out.items())
            raise ValueError(f"policy names only what does not run at K={point.K}: {reasons}")
        for error in (e for path, e in resolved.errors.items() if path[1] in point.policy):
            raise error
        set_policy_choices(point)
        coordinates = {key: validation.to_coordinate(one) for key, one in combination.items()}
        # A point has one study type, so `kind.` adds nothing to a key.
        varied = {
            key.removeprefix("kind."): value
            for key, value in {**(swept or {}), **coordinates}.items()
        }
        stored = {key: value for key, value in varied.items() if key not in DIMENSIONS}
        dimensions = {key: value for key, value in varied.items() if key in DIMENSIONS}
        name = format_words(stored).replace("/", "_") or f"K={point.K}"
        points.append(GridPoint(name, point, stored, left_out, dimensions=format_words(dimensions)))
    return points


def format_words(values: Mapping[str, Any]) -> str:
    """Format values as `key=value`, separated by commas."""
    return ",".join(f"{key}={value}" for key, value in values.items())


def find_left_out(config: Config) -> dict[str, str]:
    """Return the policies that do not run at a point, with the reason."""
    listed = (config.policies_by_K or {}).get(config.K)
    reasons = {}
    for label in map(str, config.policy):
        if config.K != 1 and split_label(label)[0] in SINGLE_SERVER:
            reasons[label] = "defined for K=1 only"
        elif listed is not None and label not in listed:
            reasons[label] = f"not in policies_by_K of K={config.K}"
    return reasons


def set_policy_choices(point: Config) -> None:
    """Set the keys `schedule`, `retry` and `exploration` in every policy, where they are given.

    `optimal` and `random`, the two ends of every scale, stay as they are.

    Raises:
        ValueError: no policy is left to change.
    """
    chosen = {key: point[key] for key in validation.POLICY_CHOICES if point.get(key) is not None}
    changed = [label for label in point.policy if label not in SCALE]
    if chosen and not changed:
        raise ValueError(
            f"{format_words(chosen)} changes no policy: {' and '.join(SCALE)} stay as they are"
        )
    for label in changed if chosen else ():
        learner = find_learner(point.policy[label])
        learner |= {key: value for key, value in chosen.items() if key != "exploration"}
        if "exploration" not in chosen:
            continue
        length = exploration_length(point.explore_rounds, point.horizon, point.c1)
        own = {"exploration": chosen["exploration"], "c1": point.c1, "explore_rounds": length}
        fields = getattr(validation.import_target(learner["_target_"]), "__dataclass_fields__", {})
        if own.keys() <= fields.keys():
            learner |= own
            continue
        if "exploration" in fields:  # a rule of its own, as Q-UCB has
            learner["exploration"] = "none"
        if chosen["exploration"] != "none":
            within = Config(learner)
            learner.clear()
            learner |= {"_target_": "cqbjax.policies.ForcedExploration", "policy": within, **own}


def find_learner(policy: Config) -> Config:
    """Return the policy within wrappers, such as the `Acqb` of ACQB-CL."""
    for key in ("base", "policy"):
        if isinstance(policy.get(key), Config):
            return find_learner(policy[key])
    return policy


def list_rates(config: Config) -> list[float] | str:
    """Return the arrival rates of a point: `arrival_rate`, or its K's entry of `rates_by_K`.

    The option `by_rule` is returned unchanged: `resolve_rates` replaces it when the table is known.

    Raises:
        ValueError: neither is given for the point's K.
    """
    rates = config.arrival_rate
    if rates == BY_RULE:
        return BY_RULE
    if rates is None:
        by_size = config.rates_by_K or {}
        if config.K not in by_size:
            sizes = ", ".join(str(key) for key in by_size) or "no K"
            raise ValueError(
                f"arrival_rate is not given, and rates_by_K is for {sizes}, not for K={config.K}"
            )
        rates = by_size[config.K]
    return [float(rate) for rate in to_list(rates)]


def resolve_rates(point: GridPoint, source: "Source | DatasetSource") -> GridPoint:
    """Return the point with numeric arrival rates, chosen from the table if they are `by_rule`.

    The paper's data use `rates_by_K` if it is given; the rule is for other tables.

    Raises:
        ValueError: rates by rule for a source that is not a dataset.
    """
    if point.config.arrival_rate != BY_RULE:
        return point
    from cqbjax.datasets import DatasetSource, choose_arrival_rates

    if not isinstance(source, DatasetSource):
        raise ValueError(f"arrival_rate={BY_RULE} needs a dataset as source: give numbers")
    rates = (point.config.rates_by_K or {}).get(point.config.K)
    if rates is not None and source.table.provenance == PAPER:
        chosen = [float(rate) for rate in rates]
    else:
        chosen = list(choose_arrival_rates(source.served(point.config.K)))
    return dataclasses.replace(point, config=point.config.with_values({"arrival_rate": chosen}))


def list_seeds(config: Config) -> range:
    """Return the seeds of a study."""
    return range(config.first_seed, config.first_seed + config.num_seeds)
