"""The points of a study: one for each combination of its configuration's list-valued keys.

What compiles together and is stored together is a point; it runs on its own (`study.py`).
"""

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from cqbjax.core.labels import PAPER
from cqbjax.experiments import validation
from cqbjax.experiments.configs import Composed, Config, select
from cqbjax.experiments.validation import BY_RULE, DIMENSIONS, to_list

if TYPE_CHECKING:
    from cqbjax.core.recorders import Recorder
    from cqbjax.core.scenario import ServiceModel, UserModel
    from cqbjax.core.types import Source
    from cqbjax.datasets import DatasetSource
    from cqbjax.engine.spec import SweepSpec

LONGEST_NAME = 150
# Defined for one server a query; a point with more leaves them out and says so.
SINGLE_SERVER = ("q_ucb", "q_ths")


@dataclasses.dataclass(frozen=True)
class GridPoint:
    """One combination of the grid: what compiles together and is stored together.

    Attributes:
        name: under which it is stored, e.g. `K=1,num_servers=3`.
        config: the resolved configuration, grid keys scalar.
        varied: the values here of keys in which points of the study differ.
        left_out: policies that do not run at this point, each with the reason.
        keys: what its numbers follow from, hashed when it was first asked for, of the point under
            no label and of each policy under its own: what is edited while it runs is not in them.
        runs: the arrival rate or policies that tell it from a multirun's points of the same name.
        asked: the configuration of all its arrival rates and seeds, where only some are to run.
    """

    name: str
    config: Config
    varied: dict[str, Any]
    left_out: dict[str, str]
    keys: dict[str, str] = dataclasses.field(default_factory=dict, compare=False, repr=False)
    runs: str = ""
    asked: Config | None = dataclasses.field(default=None, compare=False, repr=False)

    @property
    def label(self) -> str:
        """Its name, and the arrival rate or policies that a multirun varied."""
        return f"{self.name},{self.runs}" if self.runs else self.name


class PreparedPoint(NamedTuple):
    """A point that has been checked, with what it runs.

    Attributes:
        point: from `settle`.
        source: made from its configuration.
        policies: label -> policy; those that learn offline are untrained until `train`.
        recorders: what is recorded beside what always is.
        users: what one does who is not satisfied.
        service: what can be done a round.
        kind: of study, which runs it: a `study_types.StudyType`.
        attributes: where its queries come from; None: they follow from the source.
        lines: what is said of it before it runs.
        spec: its validated sweep without untrained policies; from `StudyType.validate`.
    """

    point: GridPoint
    source: Any
    policies: Mapping[str, Any]
    recorders: "tuple[Recorder, ...]" = ()
    users: "tuple[UserModel, ...]" = ()
    service: "tuple[ServiceModel, ...]" = ()
    kind: Any = None
    attributes: Mapping[str, Any] | None = None
    lines: Sequence[str] = ()
    spec: "SweepSpec | None" = None


def compose(config: Composed, swept: Mapping[str, Any] | None = None) -> list[GridPoint]:
    """Return the points of a configuration: one for each combination of the lists of its grid.

    Args:
        config: of the study; `grid` in it names the keys, `a.b.c`, whose list is one.
        swept: key -> value, what tells it from other configurations of a sweep.

    Raises:
        ValueError: a key has a value that it may not have, or a point has no policy left.
    """
    grid = _list_values(config)
    points = []
    for chosen in itertools.product(*grid.values()):
        varied = dict(zip(grid, chosen, strict=True))
        made = config.at(varied)
        one = Config(made)
        one.pop("grid", None)
        _raise_first(error for path, error in made.errors.items() if path[0] != "policy")
        validation.validate_keys(one)
        one.arrival_rate = list_rates(one)
        out = find_left_out(one)
        for label in out:
            del one.policy[label]
        if not one.policy:
            reasons = ", ".join(f"{label} ({reason})" for label, reason in out.items())
            raise ValueError(f"policy names only what does not run at K={one.K}: {reasons}")
        _raise_first(made.errors[path] for path in made.errors if path[1] in one.policy)
        own = {key: validation.to_coordinate(value) for key, value in varied.items()}
        # A point has one kind: its keys are told without saying so.
        varied = {
            key.removeprefix("kind."): value for key, value in {**(swept or {}), **own}.items()
        }
        kept = {key: value for key, value in varied.items() if key not in DIMENSIONS}
        runs = format_words({key: value for key, value in varied.items() if key in DIMENSIONS})
        points.append(GridPoint(_shorten_name(kept) or f"K={one.K}", one, kept, out, runs=runs))
    return points


def _raise_first(errors: Iterable[Exception]) -> None:
    """Raise the first of what could not be resolved."""
    for error in errors:
        raise error


def _list_values(config: Config) -> dict[str, list[Any]]:
    """Return the values of the keys of the grid.

    Raises:
        ValueError: naming a key whose list is empty, or has a value twice.
    """
    lists = {}
    for key in config.get("grid") or ():
        value = select(config, key)
        if not isinstance(value, list):
            continue
        lists[key] = list(value)
        if not value or len({str(one) for one in value}) < len(value):
            raise ValueError(f"{key}={value} must be a value or a list of distinct ones")
    return lists


def format_words(varied: Mapping[str, Any]) -> str:
    """Return what was varied as words of a command."""
    return ",".join(f"{key}={value}" for key, value in varied.items())


def _shorten_name(varied: Mapping[str, Any]) -> str:
    """Return the file name of a point: what was varied, or a hash where that is too long."""
    name = format_words(varied).replace("/", "_")
    if len(name) <= LONGEST_NAME:
        return name
    from cqbjax.core.files import hash_parts

    return f"{name[:40]}...{hash_parts(name)}"


def find_left_out(config: Config) -> dict[str, str]:
    """Return the policies that do not run at a point, with the reason."""
    kept = (config.policies_by_K or {}).get(config.K)
    out = {}
    for label in map(str, config.policy):
        if config.K != 1 and label in SINGLE_SERVER:
            out[label] = "defined for K=1 only"
        elif kept is not None and label not in kept:
            out[label] = f"not in policies_by_K of K={config.K}"
    return out


def list_rates(config: Config) -> list[float] | str:
    """Return the arrival rates of a point: `arrival_rate`, or the entry of `rates_by_K`.

    The word `by_rule` is returned as it is: `settle` turns it into rates when the table is known.

    Raises:
        ValueError: neither is given for the point's K.
    """
    rates = config.arrival_rate
    if rates == BY_RULE:
        return BY_RULE
    if rates is None:
        by_size = config.rates_by_K or {}
        if config.K not in by_size:
            have = ", ".join(str(key) for key in by_size) or "no K"
            raise ValueError(
                f"arrival_rate is not given, and rates_by_K is for {have}, not for K={config.K}"
            )
        rates = by_size[config.K]
    return [float(rate) for rate in to_list(rates)]


def resolve_rates(point: GridPoint, source: "Source | DatasetSource") -> GridPoint:
    """Return the point with arrival rates in numbers, where they are chosen by rule.

    The paper's own data take `rates_by_K`, where it is given: the rule is for other tables.

    Raises:
        ValueError: rates by rule for a source that is no dataset.
    """
    if point.config.arrival_rate != BY_RULE:
        return point
    from cqbjax.datasets import DatasetSource, choose_arrival_rates

    if not isinstance(source, DatasetSource):
        raise ValueError(f"arrival_rate={BY_RULE} needs a dataset as source: give numbers")
    own = (point.config.rates_by_K or {}).get(point.config.K)
    if own is not None and source.table.provenance == PAPER:
        chosen = [float(rate) for rate in own]
    else:
        chosen = list(choose_arrival_rates(source.served(point.config.K)))
    return dataclasses.replace(point, config=point.config.at({"arrival_rate": chosen}))


def list_seeds(config: Config) -> range:
    """Return the seeds of a study."""
    return range(config.first_seed, config.first_seed + config.num_seeds)
