"""cqbjax: a batched JAX simulator of contextual queueing bandits with multinomial-logit feedback.

import cqbjax
from cqbjax import policies, sources

source = sources.Synthetic(num_servers=5, dim=5, slackness=0.03)
chosen = {"acqb": policies.Acqb(alpha_scale=0.5), "random": policies.RandomRouting()}
data = cqbjax.sweep(chosen, source, arrival_rates=[0.7], seeds=20, horizon=1000)
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cqbjax.report import results, summaries
    from cqbjax.sweeping import backend
    from cqbjax.sweeping.parts import PerSeed, QueueOverflow
    from cqbjax.sweeping.sweep import sweep

# Where each name lives. It is imported when it is first asked for: a command starts with this
# package, and shows a configuration or refuses a word without JAX and xarray.
_HOMES = {
    "PerSeed": "cqbjax.sweeping.parts",
    "QueueOverflow": "cqbjax.sweeping.parts",
    "backend": "cqbjax.sweeping",
    "results": "cqbjax.report",
    "summaries": "cqbjax.report",
    "sweep": "cqbjax.sweeping.sweep",
}

__all__ = ["PerSeed", "QueueOverflow", "backend", "results", "summaries", "sweep"]


def __getattr__(name: str) -> Any:
    """Import what is asked for, once."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = importlib.import_module(_HOMES[name])
    # A module of the home, or one of its names.
    if not hasattr(home, name):
        importlib.import_module(f"{home.__name__}.{name}")
    globals()[name] = getattr(home, name)
    return globals()[name]
