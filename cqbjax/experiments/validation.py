"""Which values the keys of a study may have: refused in one sentence that names the key."""

import pkgutil
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from cqbjax.core.inputs import check_float32, is_integer, is_number, round_fraction
from cqbjax.experiments.configs import Composed, Config, find_followers, select

BY_RULE = "by_rule"
# Keys whose values are dimensions of a result: a list in one is no grid.
DIMENSIONS = ("arrival_rate", "policy")
# Read by the synthetic source alone.
SYNTHETIC_KEYS = ("num_servers", "dim", "slackness", "parameters")
# What is made label by label.
GROUPS = ("policy", "users", "service")
NUMBER_KEYS = ("slackness", "burst", "burst_rounds")
WHOLE_KEYS = ("K", "num_servers", "num_seeds", "first_seed", "horizon", "dim", "batch_most")
# Keys, and settings of a class, that are read where another has one of these values alone, None for
# a setting that is left out; without values: where it is set at all,
ONLY_WITH: dict[str, tuple[str, tuple[Any, ...]]] = {
    "burst": ("arrivals", ("bursty",)), "burst_rounds": ("arrivals", ("bursty",)),
    "batch_most": ("arrivals", ("batches",)), "batch_sizes": ("arrivals", ("batches",)),
    "trace": ("arrivals", ("trace",)), "trace_column": ("arrivals", ("trace",)),
    "rates_by_K": ("arrival_rate", (BY_RULE, None)),
    "Coin.shares": ("classes", ()),
    "Impatience.pretends": ("attempts or give_up", ()),
    "Outages.length": ("share", ()), "Outages.servers": ("share", ()),
    "Prices.since": ("factors", ()),
    "Acqb.c1": ("exploration", (None, "decaying", "independent")),
    "Acqb.explore_rounds": ("exploration", ("phased",)),
    "Acqb.num_samples": ("optimism", (None, "thompson")),
    "Acqb.precision": ("retry", ("posterior", "recall")),
    "Acqb.recall_by": ("retry", ("recall", "cache")),
    "TrainedRouter.precision": ("retry", ("posterior", "recall")),
    "TrainedRouter.recall_by": ("retry", ("recall", "cache")),
    "LlmRanking.tries": ("index", (None, "best")),
}  # fmt: skip
# or not beside another.
NOT_BESIDE = {
    "batch_most": "batch_sizes", "Coin.success": "classes", "make_orbit.return_rate": "delays",
    "make_service_times.rounds": "latencies",
}  # fmt: skip
# What a study reads itself, though policies and sources follow it too.
READ_TOO = ("horizon", "data_dir", "results_dir")
# What every kind of study reads, or the command itself.
OF_ALL = (
    "kind", "name", "title", "cluster", "sweeper", "arena", "experiment", "hydra", "dry_run",
    "rerun", "fail_fast", "results_dir", "data_dir", "cache_dir",
)  # fmt: skip
# What a setting holds that is not set.
NOT_SET: tuple[Any, ...] = (None, [], 0, float("inf"))
BOOLEAN_KEYS = ("dry_run", "rerun", "fail_fast", "queries")
WORD_KEYS = {
    "title": "must be a word, or null", "results_dir": "must be a folder",
    "data_dir": "must be a folder", "cache_dir": "must be a folder, or null",
}  # fmt: skip
# null leaves these to the program.
OPEN_KEYS = ("record_every", "chunk", "shard_runs")
OBJECTIVES = ("gap", "queue_length", "regret", "throughput", "explored")
# What the paper's users and its service are called.
OF_PAPER = {"users": "stay", "service": "one"}
CHOICES = {
    "spread": ("ci", "sd"),
    "queue": ("regret", "length", "both"),
    "table": ("throughput", "gap", "length", "regret"),
}


def validate_keys(config: Config) -> None:
    """Refuse words where numbers are wanted.

    The constants of a policy are not among these keys: the policy itself refuses them.

    Args:
        config: of one point of a study's grid.

    Raises:
        ValueError: naming the key and what is allowed.
    """
    _validate_float32(config)
    _validate_words(config)
    for key in BOOLEAN_KEYS:
        _require(isinstance(config[key], bool), config, key, "must be true or false")
    for key in GROUPS:
        made = config.get(key)
        if not made:
            raise ValueError(f"{key}=[] must name at least one {key}")
        fine = isinstance(made, Config) and all(
            isinstance(one, Config) and "_target_" in one for one in made.values()
        )
        _require(fine, config, key, "must map labels to {_target_: module.Class}")
    fine = isinstance(config.source, Config) and "_target_" in config.source
    _require(fine, config, "source", "must be {_target_: module.Class}")
    for key in WHOLE_KEYS:
        _require(is_integer(config[key]), config, key, "must be a whole number")
    _require(config.batch_most >= 1, config, "batch_most", "must be at least 1")
    fine = 0 <= config.first_seed <= 2**31 - config.num_seeds
    _require(fine, config, "first_seed", "must be at least 0, and the last seed below 2^31")
    for key in OPEN_KEYS:
        fine = config[key] is None or is_integer(config[key])
        _require(fine, config, key, "must be a whole number or null")
    fine = config.shard_runs is None or config.shard_runs >= 1
    _require(fine, config, "shard_runs", "must be at least 1 run, or null")
    budget = config.memory_gb
    fine = budget is None or (is_number(budget) and 0 < budget < float("inf"))
    _require(fine, config, "memory_gb", "must be a number above 0, or null")
    fine = config.capacity == "auto" or is_integer(config.capacity)
    _require(fine, config, "capacity", "must be `auto` or a whole number of slots")
    for key, allowed in CHOICES.items():
        _require(config[key] in allowed, config, key, f"must be one of {', '.join(allowed)}")
    for key in NUMBER_KEYS:
        _require(is_number(config[key]), config, key, "must be a number")
    for key in ("trace", "trace_column"):
        fine = config[key] is None or isinstance(config[key], str)
        _require(fine, config, key, "must be a word, or null")
    sizes = config.batch_sizes
    fine = isinstance(sizes, list) and all(map(is_number, sizes))
    _require(fine, config, "batch_sizes", "must be a list of numbers")
    _validate_mappings(config)
    _require(isinstance(config.parameters, str), config, "parameters", "must be a word")
    _validate_rates(config)
    if config.compared is not None:
        _validate_labels("compared", [config.compared], [str(label) for label in config.policy])
    if config.objective is not None:
        fine = isinstance(config.objective, Config)
        _require(fine, config, "objective", "must be {metric: ..., policy: ...}, or null")
        asked, labels = config.objective, [str(label) for label in config.policy]
        _validate_labels("objective.policy", [asked.get("policy")], labels)
        _validate_labels("objective.metric", [asked.get("metric")], OBJECTIVES)
    _validate_recorders(config)
    rounds = config.table_rounds
    fine = isinstance(rounds, list) and bool(rounds)
    fine = fine and all(is_integer(one) and one >= 1 for one in rounds)
    _require(fine, config, "table_rounds", "must be a list of rounds from 1 on")


def _validate_mappings(config: Config) -> None:
    drift = config.drift
    fine = isinstance(drift, Config) and {*drift} == {"jump_at", "quarter"}
    _require(fine, config, "drift", "must map jump_at and quarter to numbers, or to null")
    for key, value in drift.items():
        if value is not None and not is_number(value):
            raise ValueError(f"drift.{key}={value} must be a number of rounds, or null")
    for key in ("rates_by_K", "policies_by_K"):
        by_size = config[key]
        fine = by_size is None or isinstance(by_size, Config)
        fine = fine and all(isinstance(one, list) for one in (by_size or {}).values())
        _require(fine, config, key, "must map K to a list, or be null")
    rates = [rate for some in (config.rates_by_K or {}).values() for rate in some]
    _require(all(map(is_number, rates)), config, "rates_by_K", "must hold numbers")


def _validate_recorders(config: Config) -> None:
    asked = config.record
    fine = isinstance(asked, list) and all(
        isinstance(one, str) or (isinstance(one, Config) and "_target_" in one) for one in asked
    )
    allowed = "must be a list of names or of {_target_: module.Class}"
    _require(fine, config, "record", allowed)


def _validate_float32(node: Config, above: str = "") -> None:
    """Refuse numbers that are infinite in float32, but for those that are so as they were given."""
    for key, value in node.items():
        if isinstance(value, Config):
            _validate_float32(value, f"{above}{key}.")
        for one in to_list(value):
            if is_number(one):
                check_float32(one, f"{above}{key}")


def validate_without_dynamics(config: Config, kind: str) -> None:
    """Refuse recorders and worlds of their own at a point of a study that is no sweep.

    Args:
        config: of the point.
        kind: of study.

    Raises:
        ValueError: naming the key.
    """
    if config.record or config.queries:
        key = "queries=true is" if config.queries else f"record={config.record} is"
        raise ValueError(f"{key} of a sweep, and {kind} is none: leave it out")
    for group, of_paper in OF_PAPER.items():
        if list(config[group]) != [of_paper]:
            raise ValueError(
                f"{group}={','.join(config[group])} is of a sweep, and {kind} is none: its "
                f"{group} is {of_paper}"
            )
    if any(value is not None for value in config.drift.values()):
        raise ValueError(f"drift={config.drift} is of a sweep, and {kind} is none: leave it out")


def validate_overrides(
    words: Sequence[str], *configs: Composed, shipped: Collection[str] = (),
    takers: Mapping[str, Sequence[str]] | None = None,
) -> None:  # fmt: skip
    """Refuse a key given for this run that no study reads, and a label that is none.

    Args:
        words: `key=value` as given.
        configs: of the studies; a key is read where any of them reads it.
        shipped: keys that a study may read itself; another is read where a value follows from it.
        takers: key -> the shipped choices through which alone it is read.

    Raises:
        ValueError: naming the key.
    """
    given = {word.lstrip("+").partition("=")[0]: word for word in words}
    for key, word in given.items():
        if "@" in key or "/" in key or key.startswith("~"):
            continue
        value = word.partition("=")[2]
        chosen = [part.strip() for part in value.strip("[]").split(",")]
        if key in GROUPS and len({*chosen}) < len(chosen):
            raise ValueError(f"{word} must name nothing twice")
        for config in configs if key == "figure_policies" else ():
            if config[key] is not None:
                _validate_labels(key, to_list(config[key]), [str(label) for label in config.policy])
        # What is chosen of `preset` are the keys that no other file has.
        own = [one for one in configs[0] if one not in (*shipped, "grid")]
        if all(
            why := _explain_unread(one, config, shipped, takers or {})
            for config in configs for one in (own if key == "preset" else [key])
        ):  # fmt: skip
            raise ValueError(f"{'+' if word.startswith('+') else ''}{key} {why}: leave it out")


def _explain_unread(
    key: str, config: Composed, shipped: Collection[str], takers: Mapping[str, Sequence[str]]
) -> str:
    """Return why a key is not read; nothing where it is."""
    (root, *inside), kind = key.split("."), _find_study_type(config)
    if _replays_log(config) and (key in SYNTHETIC_KEYS or root == "source"):
        return "is of a source, and a log is replayed here"
    if kind is not None:
        own = root in (*kind.read_keys, *OF_ALL)
        if {root, key} & {*kind.unread_keys} or ("*" in kind.unread_keys and not own):
            return f"is not read by {kind.__name__}, the kind of study here"
        if own:
            return ""
    if inside or root in ONLY_WITH or root in NOT_BESIDE:
        why = _explain_idle(key, config)
        if why or root in (*GROUPS, "source"):
            return why
    alone = root in takers or root in SYNTHETIC_KEYS
    if not alone and (root in shipped or not shipped):
        return ""
    # Of the rules for tau one reads c1.
    ruled = key == "c1" and "stabilised" not in to_list(config.get("explore_rounds"))
    whys = [
        _explain_unread(".".join(map(str, path)), config, shipped, takers)
        for path, text in find_followers(config, key)
        if not (ruled and text.startswith("${tau:"))
    ]
    if whys:
        return min(whys)
    if key in SYNTHETIC_KEYS and "dataset" in config.source:
        named = config.source.dataset
        return f"is of the synthetic source, and the source here is the dataset {named}"
    if key in SYNTHETIC_KEYS:
        return f"is not read by the source here, {config.source.get('_target_')}"
    some = takers.get(root)
    return f"is read by nothing here, but by {', '.join(some)}" if some else "is read by nothing"


def name_typed_key(said: str, words: Sequence[str], config: Composed) -> str:
    """Return a refusal with the key that was typed, where it begins with the name of a setting.

    Args:
        said: such as `alpha=-1 must be ...`, of an object that is made from the configuration.
        words: `key=value` as given.
        config: of the study.
    """
    name = next(iter(re.findall(r"^\w+", said)), "")
    keys = [word.lstrip("+").partition("=")[0] for word in words]
    for key in [] if name in keys else keys:
        alike = f"_{key.rpartition('.')[2]}".endswith(f"_{name}")
        if name and alike or any(name == path[-1] for path, _ in find_followers(config, key)):
            return key + said.removeprefix(name)
    return said


def _find_study_type(config: Config) -> Any:
    """Return the class of a study that is no plain sweep; None where there is none."""
    target = select(config, "kind._target_")
    try:
        kind = None if str(target).endswith(".Sweep") else pkgutil.resolve_name(str(target))
    except (ImportError, AttributeError, ValueError):
        kind = None
    return kind if hasattr(kind, "unread_keys") else None


def _explain_idle(key: str, config: Config) -> str:
    """Return why a key is not read, as others beside it are set; nothing where it is."""
    above, _, name = key.rpartition(".")
    node = select(config, above) if above else config
    if not isinstance(node, Config):
        return ""
    owner = f"{str(node.get('_target_')).rpartition('.')[2]}." if above else ""
    other, values = ONLY_WITH.get(owner + name, ("", ()))
    dot = f"{above}." if above else ""
    if values and not any(one in values for one in to_list(node.get(other))):
        allowed = " or ".join(str(value) for value in values if value is not None)
        return f"is read with {dot}{other}={allowed or 'null'} alone"
    if other and not values and all(node.get(one) in NOT_SET for one in other.split(" or ")):
        return f"is read with {dot}{other} alone"
    beside = NOT_BESIDE.get(owner + name)
    if beside and node.get(beside) not in NOT_SET:
        return f"is not read beside {dot}{beside}"
    return ""


def _replays_log(config: Config) -> bool:
    """Tell whether the queries of a study are those of a log, whatever its source."""
    return str(select(config, "kind._target_")).endswith(".LogReplay")


def _validate_labels(key: str, named: Sequence[Any], run: Sequence[str]) -> None:
    for label in named:
        if label not in run:
            known = ", ".join(run)
            raise ValueError(f"{key}={label} does not run here; choose from {known}")


def to_list(value: Any) -> list[Any]:
    """Return a value of the configuration as a list: its items, or itself alone."""
    return list(value) if isinstance(value, list) else [value]


def _validate_rates(config: Config) -> None:
    rates = config.arrival_rate
    fine = rates is None or rates == BY_RULE or all(is_number(rate) for rate in to_list(rates))
    _require(fine, config, "arrival_rate", f"must be `{BY_RULE}`, a number or a list of them")


def to_coordinate(value: Any) -> Any:
    """Return a swept value as a number or a text, which a coordinate can hold."""
    return round_fraction(value) if is_number(value) else str(value)


def name_files(config: Config) -> str:
    """Return the name of a study's files: its own, and before it what its kind of study says."""
    _validate_words(config)
    validate_name(config.name)
    prefix = (config.get("kind") or {}).get("prefix") or ""
    validate_name(f"{prefix}{config.name}", "kind.prefix and name")
    return f"{prefix}{config.name}"


def _validate_words(config: Config) -> None:
    for key, allowed in WORD_KEYS.items():
        value = config.get(key, "there")
        fine = (isinstance(value, str) and bool(value)) or (value is None and "null" in allowed)
        _require(fine, config, key, allowed)


def validate_name(name: Any, key: str = "name") -> None:
    """Refuse a name of results that is no plain file name: it would lead out of their folder.

    Raises:
        ValueError: saying what a name may be.
    """
    plain = isinstance(name, str) and name.isprintable() and name == name.strip()
    if not plain or not name or name.startswith(".") or "/" in name or "\\" in name:
        raise ValueError(
            f"{key}={name} must be a word that can name a file: no / or \\, no dot at its beginning"
        )


def _require(fine: bool, config: Config, key: str, allowed: str) -> None:
    if not fine:
        raise ValueError(f"{key}={config[key]} {allowed}")
