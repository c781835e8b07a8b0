"""Which values the keys of a study may have: refused in one sentence that names the key."""

from collections.abc import Sequence
from typing import Any

from cqbjax.core.given import is_number, is_whole, rounded
from cqbjax.studies.configs import Composed, Config, select

BY_RULE = "by_rule"
# Keys whose values are dimensions of a result: a list in one is no grid.
DIMENSIONS = ("arrival_rate", "policy")
# Read by the synthetic source alone.
SYNTHETIC_KEYS = ("num_servers", "dim", "slackness", "parameters")
# What is made label by label.
GROUPS = ("policy", "users", "service")
NUMBER_KEYS = ("slackness", "burst", "burst_rounds")
WHOLE_KEYS = ("K", "num_servers", "num_seeds", "first_seed", "horizon", "dim", "batch_most")
# Read where another key has this value alone,
ONLY_WITH = {
    "burst": ("arrivals", "bursty"), "burst_rounds": ("arrivals", "bursty"),
    "batch_most": ("arrivals", "batches"), "batch_sizes": ("arrivals", "batches"),
    "trace": ("arrivals", "trace"), "trace_column": ("arrivals", "trace"),
}  # fmt: skip
# or not beside another key.
NOT_BESIDE = {
    "batch_most": "batch_sizes", "source.success": "source.classes",
    "users.orbit.return_rate": "users.orbit.delays",
    "service.rounds.rounds": "service.rounds.latencies",
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


def check_keys(config: Config) -> None:
    """Refuse words where numbers are wanted.

    The constants of a policy are not among these keys: the policy itself refuses them.

    Args:
        config: of one point of a study's grid.

    Raises:
        ValueError: naming the key and what is allowed.
    """
    for key in GROUPS:
        made = config.get(key)
        if not made:
            raise ValueError(f"{key}=[] must name at least one {key}")
        fine = isinstance(made, Config) and all(
            isinstance(one, Config) and "_target_" in one for one in made.values()
        )
        _refuse_unless(fine, config, key, "must map labels to {_target_: module.Class}")
    fine = isinstance(config.source, Config) and "_target_" in config.source
    _refuse_unless(fine, config, "source", "must be {_target_: module.Class}")
    for key in WHOLE_KEYS:
        _refuse_unless(is_whole(config[key]), config, key, "must be a whole number")
    for key in OPEN_KEYS:
        fine = config[key] is None or is_whole(config[key])
        _refuse_unless(fine, config, key, "must be a whole number or null")
    fine = config.shard_runs is None or config.shard_runs >= 1
    _refuse_unless(fine, config, "shard_runs", "must be at least 1 run, or null")
    budget = config.memory_gb
    fine = budget is None or (is_number(budget) and 0 < budget < float("inf"))
    _refuse_unless(fine, config, "memory_gb", "must be a number above 0, or null")
    fine = config.capacity == "auto" or is_whole(config.capacity)
    _refuse_unless(fine, config, "capacity", "must be `auto` or a whole number of slots")
    for key, allowed in CHOICES.items():
        _refuse_unless(config[key] in allowed, config, key, f"must be one of {', '.join(allowed)}")
    for key in NUMBER_KEYS:
        _refuse_unless(is_number(config[key]), config, key, "must be a number")
    for key in ("trace", "trace_column"):
        fine = config[key] is None or isinstance(config[key], str)
        _refuse_unless(fine, config, key, "must be a word, or null")
    sizes = config.batch_sizes
    fine = isinstance(sizes, list) and all(map(is_number, sizes))
    _refuse_unless(fine, config, "batch_sizes", "must be a list of numbers")
    _check_mappings(config)
    _refuse_unless(isinstance(config.parameters, str), config, "parameters", "must be a word")
    _check_rates(config)
    if config.compared is not None:
        _check_labels("compared", [config.compared], [str(label) for label in config.policy])
    if config.objective is not None:
        fine = isinstance(config.objective, Config)
        _refuse_unless(fine, config, "objective", "must be {metric: ..., policy: ...}, or null")
        asked, labels = config.objective, [str(label) for label in config.policy]
        _check_labels("objective.policy", [asked.get("policy")], labels)
        _check_labels("objective.metric", [asked.get("metric")], OBJECTIVES)
    _check_recorders(config)
    rounds = config.table_rounds
    fine = isinstance(rounds, list) and bool(rounds)
    fine = fine and all(is_whole(one) and one >= 1 for one in rounds)
    _refuse_unless(fine, config, "table_rounds", "must be a list of rounds from 1 on")


def _check_mappings(config: Config) -> None:
    drift = config.drift
    fine = isinstance(drift, Config) and {*drift} == {"jump_at", "quarter"}
    fine = fine and all(one is None or is_number(one) for one in drift.values())
    _refuse_unless(fine, config, "drift", "must map jump_at and quarter to numbers, or to null")
    for key in ("rates_by_K", "policies_by_K"):
        by_size = config[key]
        fine = by_size is None or isinstance(by_size, Config)
        fine = fine and all(isinstance(one, list) for one in (by_size or {}).values())
        _refuse_unless(fine, config, key, "must map K to a list, or be null")
    rates = [rate for some in (config.rates_by_K or {}).values() for rate in some]
    _refuse_unless(all(map(is_number, rates)), config, "rates_by_K", "must hold numbers")


def _check_recorders(config: Config) -> None:
    asked = config.record
    fine = isinstance(asked, list) and all(
        isinstance(one, str) or (isinstance(one, Config) and "_target_" in one) for one in asked
    )
    allowed = "must be a list of names or of {_target_: module.Class}"
    _refuse_unless(fine, config, "record", allowed)
    _refuse_unless(isinstance(config.queries, bool), config, "queries", "must be true or false")


def check_plain(config: Config, kind: str) -> None:
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


def check_overrides(words: Sequence[str], config: Composed) -> None:
    """Refuse a key given for this run that its source does not read, or a label that is none.

    Args:
        words: `key=value` as given.
        config: of the study.

    Raises:
        ValueError: naming the key.
    """
    for word in words:
        key = word.partition("=")[0]
        if key == "figure_policies" and config[key] is not None:
            _check_labels(key, listed(config[key]), [str(label) for label in config.policy])
        root = key.partition(".")[0]
        if (key in SYNTHETIC_KEYS or root == "source") and _of_a_log(config):
            raise ValueError(f"{key} is of a source, and a log is replayed here: leave it out")
        if key in SYNTHETIC_KEYS and "dataset" in config.source:
            raise ValueError(
                f"{key} is of the synthetic source, and the source here is the dataset "
                f"{config.source.dataset}: leave it out"
            )
        if key in SYNTHETIC_KEYS and not _reads(config, key):
            raise ValueError(
                f"{key} is not read by the source here, {config.source.get('_target_')}: leave it "
                "out"
            )
        _check_read(key, config)


def _check_read(key: str, config: Config) -> None:
    """Refuse a key that is not read, as others are set."""
    other, value = ONLY_WITH.get(key, ("", ""))
    if other and value not in listed(config[other]):
        raise ValueError(f"{key} is read with {other}={value} alone: leave it out")
    beside = NOT_BESIDE.get(key)
    if beside and select(config, beside):
        raise ValueError(f"{key} is not read beside {beside}: leave it out")


def _of_a_log(config: Config) -> bool:
    """Tell whether the queries of a study are those of a log, whatever its source."""
    return str(select(config, "kind._target_")).endswith(".Replay")


def _reads(config: Composed, key: str) -> bool:
    """Tell whether a source's configuration takes a key, or has it as its own."""
    return f"${{{key}}}" in str(config.written().source) or key in config.source


def _check_labels(key: str, named: Sequence[Any], run: Sequence[str]) -> None:
    for label in named:
        if label not in run:
            known = ", ".join(run)
            raise ValueError(f"{key}={label} does not run here; choose from {known}")


def listed(value: Any) -> list[Any]:
    """Return a value of the configuration as a list: its items, or itself alone."""
    return list(value) if isinstance(value, list) else [value]


def _check_rates(config: Config) -> None:
    rates = config.arrival_rate
    fine = rates is None or rates == BY_RULE or all(is_number(rate) for rate in listed(rates))
    _refuse_unless(fine, config, "arrival_rate", f"must be `{BY_RULE}`, a number or a list of them")


def as_stored(value: Any) -> Any:
    """Return a swept value as a number or a text, which a coordinate can hold."""
    return rounded(value) if is_number(value) else str(value)


def stem_of(config: Config) -> str:
    """Return the name of a study's files: its own, and before it what its kind of study says."""
    check_name(config.name)
    return f"{(config.get('kind') or {}).get('prefix') or ''}{config.name}"


def check_name(name: Any) -> None:
    """Refuse a name of results that is no plain file name: it would lead out of their folder.

    Raises:
        ValueError: saying what a name may be.
    """
    plain = isinstance(name, str) and name.isprintable() and name == name.strip()
    if not plain or not name or name.startswith(".") or "/" in name or "\\" in name:
        raise ValueError(
            f"name={name} must be a word that can name a file: no / or \\, no dot at its beginning"
        )


def _refuse_unless(fine: bool, config: Config, key: str, allowed: str) -> None:
    if not fine:
        raise ValueError(f"{key}={config[key]} {allowed}")
