"""Validate the keys of a study before JAX is imported; each error is one sentence with the key.

`engine.memory.check_chunks` and `engine.validation` validate `chunk`, `memory_gb` and `capacity`.
"""

import inspect
import pkgutil
import re
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from cqbjax.core.inputs import (
    Condition,
    check_float32,
    is_integer,
    is_number,
    round_fraction,
    suggest_names,
)
from cqbjax.core.labels import OPTIMAL
from cqbjax.experiments.configs import ComposedConfig, Config, find_references, select

BY_RULE = "by_rule"
# Keys whose values are dimensions of a result: a list does not span a grid.
DIMENSIONS = ("arrival_rate", "policy")
# Read by the synthetic source only.
SYNTHETIC_KEYS = ("num_servers", "dim", "slackness", "parameters")
# Keys that map labels to objects.
GROUPS = ("policy", "users", "service")
WHOLE_KEYS = ("K", "num_servers", "num_seeds", "first_seed", "horizon", "dim")
# Keys of a study that are read under a condition; classes declare those of their own fields
# (`core.inputs.read_when`).
CONDITIONS = {
    **dict.fromkeys(("burst", "burst_rounds"), [Condition("arrivals", "bursty")]),
    "batch_most": [Condition("arrivals", "batches"), Condition("batch_sizes", is_set=False)],
    "batch_sizes": [Condition("arrivals", "batches")],
    **dict.fromkeys(("trace", "trace_column"), [Condition("arrivals", "trace")]),
    "rates_by_K": [Condition("arrival_rate", BY_RULE, None)],
}
# Keys that a study reads itself, although policies and sources refer to them too.
READ_TOO = ("horizon", "data_dir", "results_dir")
# Keys that every study type reads, or the command itself.
COMMON_KEYS = (
    "kind", "name", "title", "cluster", "sweeper", "arena", "scenario", "experiment", "hydra",
    "dry_run",
    "rerun", "fail_fast", "verbose", "results_dir", "data_dir", "cache_dir",
)  # fmt: skip
# Keys that do not affect any number: how results are shown, and where and how they are computed.
# A key in none of the lists is part of the cache key.
DISPLAY_KEYS = (
    "name", "title", "figure", "figure_policies", "spread", "scale", "queue", "table", "compared",
    "objective", "table_rounds", "dry_run", "rerun", "fail_fast", "verbose", "chunk", "memory_gb",
    "shard_runs",
    "cluster", "results_dir", "data_dir", "cache_dir",
)  # fmt: skip
# Keys of the runs of a point to which others can be added.
RUN_KEYS = ("arrival_rate", "first_seed", "num_seeds")
# Keys that replace the choice of every policy -> their values.
POLICY_CHOICES = {
    "schedule": ("oldest", "newest", "least_served", "random", "joint"),
    "retry": ("same", "fallback", "posterior", "recall", "cache"),
    "exploration": ("decaying", "phased", "independent", "none"),
}
# The name of a study that is given none, followed by its settings.
UNNAMED, MAX_NAME = "custom", 60
OBJECTIVES = ("gap", "queue_length", "regret", "throughput", "explored")
# The user model and the service model of the paper.
PAPER_DYNAMICS = {"users": "stay", "service": "one"}


def _has_target(value: Any) -> bool:
    return isinstance(value, Config) and "_target_" in value


def _is_list(value: Any, check: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and all(map(check, value))


def _maps_sizes(value: Any, check: Callable[[Any], bool]) -> bool:
    """Return whether a value is null or maps K to lists."""
    return value is None or (
        isinstance(value, Config) and all(_is_list(some, check) for some in value.values())
    )


# Whether a value is allowed, and which values are.
Rule = tuple[Callable[[Any], bool], str]
TEXT: Rule = (lambda x: isinstance(x, str), "must be a word")
WORD: Rule = (lambda x: isinstance(x, str) and x != "", "must be a word")
FOLDER: Rule = (WORD[0], "must be a folder")
FLAG: Rule = (lambda x: isinstance(x, bool), "must be true or false")
NUMBER: Rule = (is_number, "must be a number")
COUNT: Rule = (lambda x: is_integer(x) and x >= 1, "must be a whole number, at least 1")


def one_of(*choices: str) -> Rule:
    """Return the rule of a key with these choices."""
    return choices.__contains__, f"must be one of {', '.join(choices)}"


def or_null(is_allowed: Callable[[Any], bool], allowed: str) -> Rule:
    """Return a rule that allows null, too."""
    return lambda x: x is None or is_allowed(x), f"{allowed}, or null"


WORD_RULES: dict[str, Rule] = {
    "title": or_null(*WORD), "results_dir": FOLDER, "data_dir": FOLDER,
    "cache_dir": or_null(*FOLDER),
}  # fmt: skip
RULES: dict[str, Rule] = {
    **WORD_RULES,
    **dict.fromkeys(("dry_run", "rerun", "fail_fast", "verbose", "queries"), FLAG),
    **dict.fromkeys(GROUPS, (
        lambda x: isinstance(x, Config) and all(map(_has_target, x.values())),
        "must map labels to {_target_: module.Class}",
    )),
    "source": (_has_target, "must be {_target_: module.Class}"),
    **dict.fromkeys(WHOLE_KEYS, (is_integer, "must be a whole number")),
    "record_every": (lambda x: x is None or is_integer(x), "must be a whole number or null"),
    "shard_runs": or_null(COUNT[0], "must be at least 1 run"),
    **{key: or_null(*one_of(*choices)) for key, choices in POLICY_CHOICES.items()},
    "spread": one_of("ci", "sd"),
    "scale": one_of("linear", "log"),
    "figure": one_of("page", "paper"),
    "queue": one_of("regret", "length", "both"),
    "table": one_of("throughput", "gap", "length", "regret"),
    **dict.fromkeys(("slackness", "burst", "burst_rounds"), NUMBER),
    "batch_most": COUNT,
    "batch_sizes": (lambda x: _is_list(x, is_number), "must be a list of numbers"),
    **dict.fromkeys(("trace", "trace_column"), or_null(*TEXT)),
    "drift": (
        lambda x: isinstance(x, Config) and {*x} == {"jump_at", "quarter"},
        "must map jump_at and quarter to numbers, or to null",
    ),
    "rates_by_K": (
        lambda x: _maps_sizes(x, is_number), "must map K to a list of numbers, or be null",
    ),
    "policies_by_K": (
        lambda x: _maps_sizes(x, lambda label: True), "must map K to a list, or be null",
    ),
    "parameters": TEXT,
    "arrival_rate": (
        lambda x: x is None or x == BY_RULE or all(map(is_number, to_list(x))),
        f"must be `{BY_RULE}`, a number or a list of them",
    ),
    "objective": or_null(lambda x: isinstance(x, Config), "must be {metric: ..., policy: ...}"),
    "record": (
        lambda x: _is_list(x, lambda one: isinstance(one, str) or _has_target(one)),
        "must be a list of names or of {_target_: module.Class}",
    ),
    "table_rounds": (
        lambda x: x != [] and _is_list(x, lambda one: is_integer(one) and one >= 1),
        "must be a list of rounds from 1 on",
    ),
}  # fmt: skip


def validate_keys(config: Config) -> None:
    """Validate the types of the keys that a study reads itself.

    A policy validates its constants.

    Args:
        config: configuration of one grid point.

    Raises:
        ValueError: naming the key and what is allowed.
    """
    _validate_float32(config)
    for key in GROUPS:
        if not config.get(key):
            raise ValueError(f"{key}=[] must name at least one {key}")
    apply_rules(config, RULES)
    if not 0 <= config.first_seed <= 2**31 - config.num_seeds:
        raise ValueError(
            f"first_seed={config.first_seed} must be at least 0, and the last seed below 2^31"
        )
    for key, value in config.drift.items():
        if value is not None and not is_number(value):
            raise ValueError(f"drift.{key}={value} must be a number of rounds, or null")
    labels = [str(label) for label in config.policy]
    if config.compared is not None:
        _validate_names("compared", [config.compared], labels)
    if config.objective is not None:
        _validate_names("objective.policy", [config.objective.get("policy")], labels)
        _validate_names("objective.metric", [config.objective.get("metric")], OBJECTIVES)


def apply_rules(config: Mapping[str, Any], rules: Mapping[str, Rule]) -> None:
    """Raise a ValueError for a value that the rule of its key does not allow."""
    for key, (is_allowed, allowed) in rules.items():
        if key in config and not is_allowed(config[key]):
            raise ValueError(f"{key}={config[key]} {allowed}")


def _validate_names(key: str, names: Sequence[Any], known: Sequence[str]) -> None:
    for name in names:
        if name not in known:
            raise ValueError(f"{key}={name} does not run here{suggest_names(str(name), known)}")


def _validate_float32(node: Config, prefix: str = "") -> None:
    """Raise for a finite number that float32 cannot hold."""
    for key, value in node.items():
        if isinstance(value, Config):
            _validate_float32(value, f"{prefix}{key}.")
        for one in to_list(value):
            if is_number(one):
                check_float32(one, f"{prefix}{key}")


def validate_without_dynamics(config: Config, study_type: str) -> None:
    """Raise for recorders, dynamics and drift at a point of a study type that is not a sweep.

    Args:
        config: configuration of the point.
        study_type: name of its class.

    Raises:
        ValueError: naming the key.
    """
    only_sweep = f"of a sweep, and {study_type} is none"
    if config.record or config.queries:
        key = "queries=true" if config.queries else f"record={config.record}"
        raise ValueError(f"{key} is {only_sweep}: leave it out")
    for group, of_paper in PAPER_DYNAMICS.items():
        if list(config[group]) != [of_paper]:
            names = ",".join(config[group])
            raise ValueError(f"{group}={names} is {only_sweep}: its {group} is {of_paper}")
    if any(value is not None for value in config.drift.values()):
        raise ValueError(f"drift={config.drift} is {only_sweep}: leave it out")


def validate_overrides(
    words: Sequence[str], *configs: ComposedConfig, shipped: Collection[str] = (),
    readers: Mapping[str, Sequence[str]] | None = None,
) -> None:  # fmt: skip
    """Raise for an override whose key none of the studies reads, and for an unknown label.

    Args:
        words: overrides of the command, `key=value`.
        configs: configurations of the studies.
        shipped: keys that a study may read itself; any other is read if a value refers to it.
        readers: key -> the shipped choices that read it, if only they do.

    Raises:
        ValueError: naming the key.
    """
    for word in words:
        key, _, value = word.lstrip("+").partition("=")
        if "@" in key or "/" in key or key.startswith("~"):
            continue
        names = [part.strip() for part in value.strip("[]").split(",")]
        if key in GROUPS and len({*names}) < len(names):
            raise ValueError(f"{word.lstrip('+')} must name nothing twice")
        for config in configs if key in ("figure_policies", "policies_by_K") else ():
            by_size = config[key] if isinstance(config[key], Config) else {None: config[key]}
            labels = [label for some in by_size.values() if some for label in to_list(some)]
            _validate_names(key, labels, [*dict.fromkeys((*map(str, config.policy), OPTIMAL))])
        # `preset` sets the keys that are in no other file.
        preset = [one for one in configs[0] if one not in (*shipped, "grid")]
        if all(
            reason := _explain_unread(one, config, shipped, readers or {})
            for config in configs for one in (preset if key == "preset" else [key])
        ):  # fmt: skip
            raise ValueError(f"{'+' if word.startswith('+') else ''}{key} {reason}: leave it out")


def _explain_unread(
    key: str, config: ComposedConfig, shipped: Collection[str], readers: Mapping[str, Sequence[str]]
) -> str:
    """Return why a study does not read a key, or an empty text if it does."""
    (root, *inside), study_type = key.split("."), _find_study_type(config)
    if study_type is not None:
        read = root in (*study_type.read_keys, *COMMON_KEYS)
        if {root, key} & {*study_type.unread_keys} or ("*" in study_type.unread_keys and not read):
            return f"is not read by {study_type.__name__}, the study type here"
        if read:
            return ""
    if inside or root in CONDITIONS:
        reason = _explain_condition(key, config)
        if reason or root in (*GROUPS, "source"):
            return reason
    if root not in (*readers, *SYNTHETIC_KEYS) and (root in shipped or not shipped):
        return ""
    if root in ("c1", "explore_rounds") and config.get("exploration") not in (None, "none"):
        return ""
    # Only one of the rules for tau reads c1.
    other_rule = key == "c1" and "stabilised" not in to_list(config.get("explore_rounds"))
    reasons = [
        _explain_unread(".".join(map(str, path)), config, shipped, readers)
        for path, text in find_references(config, key)
        if not (other_rule and text.startswith("${tau:"))
    ]
    if reasons:
        return min(reasons)
    if key in SYNTHETIC_KEYS and "dataset" in config.source:
        dataset = config.source.dataset
        return f"is of the synthetic source, and the source here is the dataset {dataset}"
    if key in SYNTHETIC_KEYS:
        return f"is not read by the source here, {config.source.get('_target_')}"
    some = readers.get(root)
    return f"is read by nothing here, but by {', '.join(some)}" if some else "is read by nothing"


def _find_study_type(config: Config) -> Any:
    """Return the class of a study type, or None for a sweep, which imports JAX."""
    target = str(select(config, "kind._target_"))
    found = None if target == "cqbjax.experiments.sweeps.Sweep" else import_target(target)
    return found if hasattr(found, "unread_keys") else None


def import_target(target: Any) -> Any:
    """Return the class or function of a `_target_`, or None if it does not exist."""
    try:
        return pkgutil.resolve_name(str(target))
    except (ImportError, AttributeError, ValueError):
        return None


def _explain_condition(key: str, config: Config) -> str:
    """Return the condition of a key that does not hold, or an empty text."""
    parent, _, name = key.rpartition(".")
    if not parent:
        return next(filter(None, (one.explain(config) for one in CONDITIONS.get(name, ()))), "")
    node = select(config, parent)
    target = import_target(node.get("_target_")) if isinstance(node, Config) else None
    condition = getattr(target, "conditions", {}).get(name)
    if target is None or condition is None:
        return ""
    fields = inspect.signature(target).parameters
    defaults = {name: field.default for name, field in fields.items()}
    return str(condition.explain({**defaults, **node}, f"{parent}."))


def name_typed_key(message: str, words: Sequence[str], config: ComposedConfig) -> str:
    """Return an error message that names the key of the command instead of a field of an object.

    Args:
        message: such as `alpha=-1 must be ...`.
        words: overrides of the command, `key=value`.
        config: configuration of the study.
    """
    name = next(iter(re.findall(r"^\w+", message)), "")
    keys = [word.lstrip("+").partition("=")[0] for word in words]
    for key in [] if name in keys else keys:
        has_name = name and f"_{key.rpartition('.')[2]}".endswith(f"_{name}")
        if has_name or any(name == path[-1] for path, _ in find_references(config, key)):
            return key + message.removeprefix(name)
    return message


def to_list(value: Any) -> list[Any]:
    """Return a list as it is, and any other value in a list."""
    return list(value) if isinstance(value, list) else [value]


def to_coordinate(value: Any) -> Any:
    """Return a swept value as a number or a text, which a coordinate can hold."""
    return round_fraction(value) if is_number(value) else str(value)


def name_files(config: Config) -> str:
    """Return the name of a study's files: its name after the prefix of its study type."""
    apply_rules(config, WORD_RULES)
    validate_name(config.name)
    prefix = (config.get("kind") or {}).get("prefix") or ""
    validate_name(f"{prefix}{config.name}", "kind.prefix and name")
    return f"{prefix}{config.name}"


def name_settings(config: Config, words: Sequence[str], spanned: Collection[str]) -> str:
    """Return a name for a study without one: its settings, so that no other study shadows it.

    Args:
        config: configuration of the study.
        words: `key=value` of the command.
        spanned: keys that become dimensions of the result.
    """
    study_type = _find_study_type(config)
    added = RUN_KEYS if getattr(study_type, "extensible", True) else ()
    ignored = {*DISPLAY_KEYS, *added, "sweeper", "hydra"}
    if config.kind.get("prefix"):
        ignored.add("kind")
    settings: dict[str, str] = {}
    for word in words:
        key = word.lstrip("+").partition("=")[0]
        if re.split("[./]", key)[0] not in ignored and key not in (*spanned, "policy"):
            settings[key] = word.lstrip("+")
    text = ",".join([UNNAMED, *(settings[key] for key in sorted(settings) if key[0] != "~")])
    plain = re.sub(r"[][{}'\"]", "", text)
    name = re.sub(r"[^\w.,=+-]", "_", plain)
    if name == plain and len(name) <= MAX_NAME:
        return name
    return f"{name[:MAX_NAME]}-{zlib.crc32(text.encode()):08x}"


def validate_name(name: Any, key: str = "name") -> None:
    """Raise for a name that is not a plain file name and would lead out of the results' folder.

    Raises:
        ValueError: what is allowed.
    """
    plain = isinstance(name, str) and name.isprintable() and name == name.strip()
    if not plain or not name or name.startswith(".") or "/" in name or "\\" in name:
        raise ValueError(
            f"{key}={name} must be a word that can name a file: no / or \\, no dot at its beginning"
        )
