"""Configurations as plain values, with interpolations resolved once for all points of a sweep.

OmegaConf composes and resolves. The points of a sweep differ in few values, so the result of an
interpolation is cached by the values that it refers to. Planning 1,000 points takes 5.8 s this way,
and 21.7 s if OmegaConf merges and resolves each point.
"""

import copy
import math
import pathlib
import pickle
import re
from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from cqbjax.core.inputs import is_integer, round_fraction
from cqbjax.core.labels import split_label

# A reference to a key, `${a.b}`, and a call of a resolver that is a pure function.
_REFERENCE = re.compile(r"\$\{(\w[\w.]*)\}")
_RESOLVER_CALL = re.compile(r"\$\{(?:tau|times|half|dataset_title):")
_SCRATCH_KEY = "_scratch"

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

    def __reduce__(self) -> Any:
        """Pickle and copy the values alone, without the template of a `ComposedConfig`."""
        return Config, (dict(self),)

    def with_values(self, values: Mapping[str, Any]) -> "Config":
        """Return a copy with some values replaced: `a.b.c` -> value."""
        copied = copy.deepcopy(self)
        for key, value in values.items():
            *parents, last = key.split(".")
            node = copied
            for parent in parents:
                node = node[parent]
            node[last] = to_config(value)
        return copied


class ComposedConfig(Config):
    """A resolved configuration that can be resolved again with other values.

    Attributes:
        template: the configuration before its interpolations were resolved.
        set_values: `a.b.c` -> value that was set in the template.
        errors: path -> why its interpolation could not be resolved: a key with a list that spans a
            grid has no number yet.
    """

    __slots__ = ("errors", "set_values", "template")

    def __init__(
        self, resolved: Config, template: "Template", values: Mapping[str, Any],
        errors: Mapping[Path, Exception],
    ) -> None:  # fmt: skip
        super().__init__(resolved)
        for name, value in (("template", template), ("set_values", values), ("errors", errors)):
            object.__setattr__(self, name, value)

    def __setattr__(self, key: str, value: Any) -> None:
        """Raise, since values that refer to the key would not change."""
        raise AttributeError(
            f"{key} of a composed configuration is set by with_values({{key: value}})"
        )

    def with_values(self, values: Mapping[str, Any]) -> "ComposedConfig":
        """Return a copy with some values replaced, and the values that refer to them."""
        unchanged = {key: value for key, value in self.set_values.items() if key not in values}
        copied: ComposedConfig = self.template.with_values({**unchanged, **values})
        if "grid" in self:
            copied["grid"] = list(self["grid"])
        return copied


class Template:
    """A composed configuration whose interpolations are not resolved yet."""

    def __init__(self, config: DictConfig) -> None:
        _drop_unchosen(config)
        self._pickled = pickle.dumps(config)
        plain = to_config(OmegaConf.to_container(config))
        self._pickled_plain = pickle.dumps(plain)
        # The meaning of a relative interpolation depends on its position.
        self._relative = any("${." in text for *_, text in _find_interpolations(plain))
        # (text, values that it refers to) -> pickled result.
        self.resolved: dict[tuple[str, str], bytes] = {}

    def load_plain(self) -> Config:
        """Return a new copy of the values, with interpolations as text."""
        return pickle.loads(self._pickled_plain)

    def with_values(self, values: Mapping[str, Any]) -> ComposedConfig:
        """Return the resolved configuration with some values set: `a.b.c` -> value.

        Raises:
            OmegaConfBaseException: a key does not exist.
        """
        config = self.load_plain()
        if self._relative or not all(_set_value(config, *item) for item in values.items()):
            # OmegaConf sets values that change the structure or bring interpolations.
            merged = self.to_omegaconf(values)
            if not self._relative:
                return Template(merged).with_values({})
            OmegaConf.resolve(merged)
            return ComposedConfig(to_config(OmegaConf.to_container(merged)), self, values, {})
        errors: dict[Path, Exception] = {}
        resolver = _Resolver(self, config, values)
        for path, node, text in list(_find_interpolations(config)):
            try:
                node[path[-1]] = resolver.resolve(text)
            except ValueError as error:
                errors[path] = error
            except RecursionError:
                errors[path] = ValueError(f"{'.'.join(map(str, path))}={text} follows itself")
        return ComposedConfig(config, self, values, errors)

    def to_omegaconf(self, values: Mapping[str, Any]) -> DictConfig:
        """Return OmegaConf's configuration with some values set."""
        config: DictConfig = pickle.loads(self._pickled)
        for key, value in values.items():
            OmegaConf.update(config, key, value, merge=True)
        return config


class _Resolver:
    """Resolves the interpolations of one configuration, with results cached in its template."""

    def __init__(self, template: Template, config: Config, values: Mapping[str, Any]) -> None:
        self._template, self._config, self._values = template, config, values
        self._omegaconf: DictConfig | None = None

    def resolve(self, text: str) -> Any:
        """Return the value of a text with interpolations."""
        names = _REFERENCE.findall(text)
        values = [select(self._config, name) for name in names]
        if len(names) + len(_RESOLVER_CALL.findall(text)) != text.count("${"):
            return self._resolve_with_omegaconf(text)
        key = (
            text,
            repr([self.resolve(x) if isinstance(x, str) and "${" in x else x for x in values]),
        )
        if "${" in key[1]:
            return self._resolve_with_omegaconf(text)
        cache = self._template.resolved
        if key not in cache:
            cache[key] = pickle.dumps(self._resolve_with_omegaconf(text))
        return pickle.loads(cache[key])

    def _resolve_with_omegaconf(self, text: str) -> Any:
        if self._omegaconf is None:
            self._omegaconf = self._template.to_omegaconf(self._values)
            OmegaConf.set_struct(self._omegaconf, False)
        self._omegaconf[_SCRATCH_KEY] = text
        scratch = OmegaConf.create({_SCRATCH_KEY: self._omegaconf[_SCRATCH_KEY]})
        return to_config(OmegaConf.to_container(scratch, resolve=True))[_SCRATCH_KEY]


def _drop_unchosen(config: DictConfig) -> None:
    """Drop the constants that a file gives to policies that are not chosen."""
    policies = config.get("policy")
    if not isinstance(policies, DictConfig):
        return
    known = {path.stem for group in ("policy", "router") for path in CONF.glob(f"{group}/*.yaml")}
    with open_dict(policies):
        for label, node in list(policies.items_ex(resolve=False)):
            lacks = isinstance(node, DictConfig) and "_target_" not in node
            if lacks and split_label(str(label), known)[0] in known:
                del policies[label]


def from_omegaconf(config: DictConfig) -> ComposedConfig:
    """Convert a configuration of OmegaConf."""
    return Template(config).with_values({})


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


def select(config: Any, key: str) -> Any:
    """Return the value of `a.b.c`, or None if the key does not exist."""
    for name in key.split("."):
        config = config.get(name) if isinstance(config, Mapping) else None
    return config


def find_references(config: ComposedConfig, key: str) -> Iterator[tuple[Path, str]]:
    """Yield the interpolations that refer to `a.b.c`, or to a key inside it: path and text."""
    for path, _, text in _find_interpolations(config.template.load_plain()):
        where = ".".join(map(str, path))
        overridden = any(f"{where}.".startswith(f"{name}.") for name in config.set_values)
        for name in () if overridden else _REFERENCE.findall(text):
            if f"{name}.".startswith(f"{key}.") or f"{key}.".startswith(f"{name}."):
                yield path, text


def _set_value(config: Config, key: str, value: Any) -> bool:
    """Replace a plain value by another plain value; return False if either is not plain."""
    *parents, last = key.split(".")
    node = select(config, ".".join(parents)) if parents else config
    if not isinstance(node, Config) or last not in node or isinstance(node[last], Config):
        return False
    node[last] = value = to_config(value)
    return not isinstance(value, Config) and "${" not in str(value)


def _find_interpolations(node: Any, path: Path = ()) -> Iterator[tuple[Path, Any, str]]:
    """Yield the path of each interpolation, the mapping or list that holds it, and its text."""
    for key, value in node.items() if isinstance(node, dict) else enumerate(node):
        if isinstance(value, str):
            if "${" in value:
                yield (*path, key), node, value
        elif isinstance(value, dict | list):
            yield from _find_interpolations(value, (*path, key))


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
