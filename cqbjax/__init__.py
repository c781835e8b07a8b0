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
    from cqbjax import datasets, dynamics, env, figures, policies, results, sources, testing
    from cqbjax.core import backend
    from cqbjax.core.queueing import QueueOverflow
    from cqbjax.engine.progress import Reporter
    from cqbjax.engine.spec import PerSeed
    from cqbjax.engine.sweep import sweep
    from cqbjax.results import summaries

__version__ = "0.1.0"  # the only place; the wheel reads it here

# The module of each name, as `module` or `module:name`. It is imported on first use: every command
# imports this package, and prints a configuration or an error without importing JAX.
_MODULES = {
    "PerSeed": "cqbjax.engine.spec:PerSeed",
    "QueueOverflow": "cqbjax.core.queueing:QueueOverflow",
    "Reporter": "cqbjax.engine.progress:Reporter",
    "backend": "cqbjax.core.backend",
    "datasets": "cqbjax.datasets",
    "dynamics": "cqbjax.dynamics",
    "env": "cqbjax.env",
    "figures": "cqbjax.figures",
    "policies": "cqbjax.policies",
    "results": "cqbjax.results",
    "sources": "cqbjax.sources",
    "summaries": "cqbjax.results.summaries",
    "sweep": "cqbjax.engine.sweep:sweep",
    "testing": "cqbjax.testing",
}

__all__ = [
    "PerSeed", "QueueOverflow", "Reporter", "backend", "datasets", "dynamics", "env", "figures",
    "policies", "results", "sources", "summaries", "sweep", "testing",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module_name, _, attribute = _MODULES[name].partition(":")
    module = importlib.import_module(module_name)
    globals()[name] = getattr(module, attribute) if attribute else module
    return globals()[name]


def __dir__() -> list[str]:
    """List the public names, whether or not they have been imported."""
    return sorted({*globals(), *__all__})
