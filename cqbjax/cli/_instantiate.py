"""Objects instantiated from their configurations: `_target_` names the class."""

from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import OmegaConf

from cqbjax.experiments import configs
from cqbjax.experiments.configs import Config
from cqbjax.experiments.validation import import_target


def make(node: Config) -> Any:
    """Instantiate a configuration.

    Raises:
        ValueError: naming the class, if it does not exist or has no such argument.
        Exception: of an object of this package, without Hydra's wrapping.
    """
    try:
        return _make_nested(configs.to_plain(node))
    except Exception as error:  # of whatever class is instantiated
        cause = error.__cause__ if isinstance(error, InstantiationException) else error
        target = str(node.get("_target_"))
        user_defined = not target.startswith("cqbjax.")
        if isinstance(cause, ImportError | TypeError) or (
            cause and user_defined and not isinstance(cause, ValueError | OSError)
        ):
            message = " ".join(str(cause).splitlines()[:2]) or type(cause).__name__
            raise ValueError(f"{target} cannot be made: {message}") from error
        raise (cause or error) from None


def _make_nested(values: Any) -> Any:
    """Instantiate plain values, inner ones first.

    Hydra handles its special keys (`_partial_`, `_args_`) and reports unknown names. Everything
    else is instantiated here, since Hydra copies a configuration often: a thousand points take a
    second less.
    """
    if isinstance(values, list):
        return [_make_nested(value) for value in values]
    if not isinstance(values, dict):
        return values
    if "_target_" not in values:
        return {key: _make_nested(value) for key, value in values.items()}
    target = import_target(values["_target_"])
    if target is None or any(key.startswith("_") and key != "_target_" for key in values):
        return instantiate(OmegaConf.create(values), _convert_="all")
    return target(**{key: _make_nested(v) for key, v in values.items() if key != "_target_"})
