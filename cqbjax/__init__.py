"""cqbjax: a batched JAX simulator of contextual queueing bandits with multinomial-logit feedback.

import cqbjax
from cqbjax import sources

source = sources.Synthetic(num_servers=5, dim=5, slackness=0.03)
data = cqbjax.sweep(["acqb", "random"], source, arrival_rate=[0.7], num_seeds=20, horizon=1000)
cqbjax.plot(data)
"""

from typing import TYPE_CHECKING

from cqbjax.core.lazy import lazy_names

if TYPE_CHECKING:
    from cqbjax import (
        datasets,
        dynamics,
        env,
        experiments,
        figures,
        offline,
        policies,
        results,
        sources,
        testing,
    )
    from cqbjax.core import backend, mnl, queueing, recorders, rng, simulate
    from cqbjax.core.pytree import option, pytree, static
    from cqbjax.core.queueing import QueueOverflow
    from cqbjax.core.recorders import Recorder
    from cqbjax.core.scenario import PAPER_REACTION, Reaction, ServiceModel, UserModel
    from cqbjax.core.types import (
        Action,
        Feedback,
        Needs,
        Observation,
        Policy,
        Problem,
        Queue,
        Source,
        Workload,
    )
    from cqbjax.engine.programs import clear_cache
    from cqbjax.engine.progress import Reporter
    from cqbjax.engine.spec import PerSeed
    from cqbjax.notebook import plot, policy, sweep
    from cqbjax.results import summaries

__version__ = "0.1.0"  # the only place; the wheel reads it here

__all__ = [
    "PAPER_REACTION", "Action", "Feedback", "Needs", "Observation", "PerSeed", "Policy",
    "Problem", "Queue", "QueueOverflow", "Reaction", "Recorder", "Reporter", "ServiceModel",
    "Source", "UserModel", "Workload", "backend", "clear_cache", "datasets", "dynamics", "env",
    "experiments", "figures", "mnl", "offline", "option", "plot", "policies", "policy", "pytree",
    "queueing",
    "recorders", "results", "rng", "simulate", "sources", "static", "summaries", "sweep",
    "testing",
]  # fmt: skip

# A command imports this package, and reports a wrong word without loading JAX.
__getattr__, __dir__ = lazy_names(__name__)
