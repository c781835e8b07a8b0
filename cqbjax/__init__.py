"""cqbjax: a batched JAX simulator of contextual queueing bandits with multinomial-logit feedback.

import cqbjax
from cqbjax import policies, sources

source = sources.Synthetic(num_servers=5, dim=5, slackness=0.03)
chosen = {"acqb": policies.Acqb(alpha_scale=0.5), "random": policies.RandomRouting()}
data = cqbjax.sweep(chosen, source, arrival_rate=[0.7], num_seeds=20, horizon=1000)
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cqbjax import results
    from cqbjax.core import backend
    from cqbjax.core.queueing import QueueOverflow
    from cqbjax.engine.spec import PerSeed
    from cqbjax.engine.sweep import sweep
    from cqbjax.results import summaries

__version__ = "0.1.0"  # the one place; the wheel reads it here

# Where each name lives: a module, or `module:name`. It is imported when it is first asked for: a
# command starts with this package, and shows a configuration or refuses a word without JAX.
_HOMES = {
    "PerSeed": "cqbjax.engine.spec:PerSeed",
    "QueueOverflow": "cqbjax.core.queueing:QueueOverflow",
    "backend": "cqbjax.core.backend",
    "results": "cqbjax.results",
    "summaries": "cqbjax.results.summaries",
    "sweep": "cqbjax.engine.sweep:sweep",
}

__all__ = ["PerSeed", "QueueOverflow", "backend", "results", "summaries", "sweep"]


def __getattr__(name: str) -> Any:
    """Import what is asked for, once."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, inside = _HOMES[name].partition(":")
    home = importlib.import_module(module)
    globals()[name] = getattr(home, inside) if inside else home
    return globals()[name]
