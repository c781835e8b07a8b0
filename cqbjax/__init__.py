"""cqbjax: a batched JAX simulator of contextual queueing bandits with multinomial-logit feedback.

import cqbjax
from cqbjax import policies, sources

source = sources.Synthetic(num_servers=5, dim=5, slackness=0.03)
chosen = {"acqb": policies.Acqb(alpha_scale=0.5), "random": policies.RandomRouting()}
data = cqbjax.sweep(chosen, source, arrival_rates=[0.7], seeds=20, horizon=1000)
"""

from cqbjax.report import results
from cqbjax.sweeping.plan import PerSeed, QueueOverflow
from cqbjax.sweeping.sweep import sweep

__all__ = ["PerSeed", "QueueOverflow", "results", "sweep"]
