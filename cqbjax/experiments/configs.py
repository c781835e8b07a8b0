"""Configurations as plain values: composed by OmegaConf, set and resolved here.

The points of a sweep differ in few values. Setting values in plain mappings, and evaluating each
interpolation once for the values that it refers to, makes planning 1,000 points several times
faster than merging and resolving each of them by OmegaConf.
"""

import math
import pathlib
import pickle
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf

from cqbjax.core.inputs import is_integer, round_fraction
from cqbjax.core.labels import split_label

# A reference to a key, `${a.b}`, and a call of a resolver that is a pure function.
_REFERENCE = re.compile(r"\$\{(\w[\w.]*)\}")
_RESOLVER_CALL = re.compile(r"\$\{(?:tau|times|half|dataset_title):")
# (text, values that it refers to) -> its pickled value.
_evaluated: dict[tuple[str, str], bytes] = {}

# Catalogue name of a dataset -> its name in figures and tables.
TITLES = {
    "routerbench": "RouterBench", "mmlu_pro": "MMLU-Pro", "embedllm": "EmbedLLM",
    "sprout": "SPROUT", "paretobandit": "ParetoBandit",
}  # fmt: skip

Path = tuple[Any, ...]

# The shipped configurations: inside the package in a wheel, beside it in a checkout.
_PACKAGE = pathlib.Path(__file__).resolve().parents[1]
CONF = next(one for one in (_PACKAGE / "conf", _PACKAGE.parent / "conf") if one.is_dir())


class Config(dict[str, Any]):
    """A mapping of plain values whose keys are attributes too."""

    def __getattr__(self, key: str) -> Any:
        """Return the value of a key."""
        try:
            return self[key]
        except KeyError:
            raise AttributeError(f"the configuration has no key {key}") from None

    def __setattr__(self, key: str, value: Any) -> None:
        """Set the value of a key."""
        self[key] = value

    def with_values(self, values: Mapping[str, Any]) -> "Config":
        """Return a copy with some values set: `a.b.c` -> value; mappings are merged."""
        copied = self
        for key, value in values.items():
            copied = _set_value(copied, key.split("."), to_config(value))
        return copied


class ComposedConfig(Config):
    """A resolved configuration that can be resolved again with other values.

    Attributes:
        unresolved: the configuration before its interpolations were resolved.
        errors: path -> why its interpolation could not be resolved: a key with a list that spans a
            grid has no number yet.
    """

    def __init__(self, unresolved: Config) -> None:
        errors: dict[Path, Exception] = {}
        super().__init__(_resolve(unresolved, (), unresolved, errors))
        self.__dict__.update(unresolved=unresolved, errors=errors)

    def __setattr__(self, key: str, value: Any) -> None:
        """Raise, since values that refer to the key would not change."""
        raise AttributeError(
            f"{key} of a composed configuration is set by with_values({{key: value}})"
        )

    def with_values(self, values: Mapping[str, Any]) -> "ComposedConfig":
        """Return a copy with some values set, and the values that refer to them."""
        return ComposedConfig(self.unresolved.with_values(values))


def _set_value(node: Config, names: Sequence[str], value: Any) -> Config:
    """Return a copy of a mapping, which shares with it all that is not set."""
    name, *inside = names
    old = node.get(name)
    if inside:
        value = _set_value(node[name], inside, value)
    elif isinstance(old, Config) and isinstance(value, Config):
        value = old.with_values(value)
    return Config({**node, name: value})


def _resolve(value: Any, path: Path, root: Config, errors: dict[Path, Exception]) -> Any:
    """Return a copy of a value with its interpolations resolved.

    Args:
        value: the value at a path of `root`.
        path: where it is.
        root: the configuration that interpolations refer to.
        errors: takes the errors of interpolations, which stay as text.
    """
    if isinstance(value, Config):
        return Config({key: _resolve(x, (*path, key), root, errors) for key, x in value.items()})
    if isinstance(value, list):
        return [_resolve(x, (*path, number), root, errors) for number, x in enumerate(value)]
    if isinstance(value, str) and "${" in value:
        try:
            return _resolve_text(value, path, root)
        except ValueError as error:
            # OmegaConf puts this before the message of a resolver.
            _, wrapped, message = str(error).partition("while resolving interpolation: ")
            errors[path] = ValueError(message.splitlines()[0]) if wrapped else error
        except RecursionError:
            errors[path] = ValueError(f"{'.'.join(map(str, path))}={value} follows itself")
    return value


def _resolve_text(text: str, path: Path, root: Config) -> Any:
    """Return the value of a text with interpolations.

    Raises:
        ValueError: it cannot be resolved.
    """
    names, missing = _REFERENCE.findall(text), object()
    errors: dict[Path, Exception] = {}
    values = {
        name: _resolve(select(root, name, missing), tuple(name.split(".")), root, errors)
        for name in names
    }
    for error in errors.values():
        raise error
    key, calls = (text, repr(values)), _RESOLVER_CALL.findall(text)
    if (
        len(names) + len(calls) != text.count("${")
        or "${" in key[1] or any(value is missing for value in values.values())
    ):  # fmt: skip
        # Relative or nested, of another resolver, or of a key that does not exist.
        node: Any = OmegaConf.create(to_plain(root))
        for name in path[:-1]:
            node = node[name]
        resolved = OmegaConf.create({"value": node[path[-1]]})
        return to_config(OmegaConf.to_container(resolved, resolve=True))["value"]
    if text == f"${{{names[0]}}}":
        return values[names[0]]
    if key not in _evaluated:
        scratch = OmegaConf.create({"_text": text})
        for name, value in values.items():
            OmegaConf.update(scratch, name, to_plain(value))
        _evaluated[key] = pickle.dumps(to_config(scratch._text))
    return pickle.loads(_evaluated[key])


def from_omegaconf(config: DictConfig) -> ComposedConfig:
    """Convert a configuration of OmegaConf, without the constants of policies not chosen."""
    unresolved = to_config(OmegaConf.to_container(config))
    policies = unresolved.get("policy")
    if isinstance(policies, Config):
        groups = ("policy", "router")
        known = {path.stem for group in groups for path in CONF.glob(f"{group}/*.yaml")}
        for label, node in list(policies.items()):
            lacks = isinstance(node, Config) and "_target_" not in node
            if lacks and split_label(str(label), known)[0] in known:
                del policies[label]
    return ComposedConfig(unresolved)


def parse_yaml(text: str) -> ComposedConfig:
    """Parse a stored configuration."""
    config = OmegaConf.create(text)
    assert isinstance(config, DictConfig)
    return from_omegaconf(config)


def to_config(values: Any) -> Any:
    """Convert mappings to `Config`, tuples to lists, and round fractions."""
    if isinstance(values, Mapping):
        return Config({key: to_config(value) for key, value in values.items()})
    if isinstance(values, list | tuple):
        return [to_config(value) for value in values]
    return round_fraction(values)


def to_plain(values: Any) -> Any:
    """Convert a configuration, or a part of it, to dictionaries, lists and values."""
    if isinstance(values, dict):
        return {key: to_plain(value) for key, value in values.items()}
    return [to_plain(value) for value in values] if isinstance(values, list) else values


def select(config: Any, key: str, default: Any = None) -> Any:
    """Return the value of `a.b.c`, or the default if the key does not exist."""
    for name in key.split("."):
        config = config.get(name, default) if isinstance(config, Mapping) else default
    return config


def iterate_leaves(node: Config, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every key that holds no mapping, `a.b.c`, and its value."""
    for key, value in node.items():
        if isinstance(value, Config):
            yield from iterate_leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def find_references(config: ComposedConfig, key: str) -> Iterator[tuple[Path, str]]:
    """Yield the interpolations that refer to `a.b.c`, or to a key inside it: path and text."""
    for where, value in iterate_leaves(config.unresolved):
        for name in _REFERENCE.findall(str(value)):
            if f"{name}.".startswith(f"{key}.") or f"{key}.".startswith(f"{name}."):
                yield tuple(where.split(".")), str(value)


def register_resolvers() -> None:
    """Register the resolvers `tau:rule,T,c1`, `times:a,b`, `half:T,every`, `dataset_title:name`."""
    OmegaConf.register_new_resolver("tau", exploration_length, replace=True)
    # A user-defined dataset keeps its name.
    OmegaConf.register_new_resolver("dataset_title", lambda x: TITLES.get(x, x), replace=True)
    # To ten digits: `${times:0.7,16}` is 11.2.
    OmegaConf.register_new_resolver("times", lambda *x: round(math.prod(x), 10), replace=True)
    OmegaConf.register_new_resolver("half", find_half, replace=True)


def find_half(horizon: int, every: int | None) -> int:
    """Return half of the horizon, or the horizon if no round is recorded before half of it."""
    if not is_integer(horizon) or horizon < 2:
        return horizon  # validated with its key
    half = horizon // 2
    return horizon if isinstance(every, int) and every > half else half


def exploration_length(rule: str | float | None, horizon: int, c1: float) -> float:
    """Return tau in rounds.

    Args:
        rule: `tenth` (T / 10, the paper's synthetic setting), `stabilised` (the first t with
            c1 / sqrt(t + 1) <= 1, its offline one), or a number of rounds.
        horizon: T.
        c1: exploration constant.

    Raises:
        ValueError: the rule is unknown, None or a negative number.
    """
    if rule == "tenth":
        return float(horizon // 10)
    if rule == "stabilised":
        if not isinstance(c1, int | float):
            raise ValueError(f"c1={c1} must be a number for explore_rounds=stabilised")
        return float(max(1, math.ceil(c1**2 - 1)))
    if not isinstance(rule, int | float) or not 0 <= rule < float("inf"):
        raise ValueError(
            f"explore_rounds={rule} must be `tenth`, `stabilised` or a number of rounds >= 0"
        )
    return float(rule)
