"""Policies: which query to serve, with which assortment, and what to learn from the choice.

The labels used in configurations and results are `conf/policy/*.yaml`; `_template.py` is a policy
to copy.
"""

from cqbjax.policies.acqb import Acqb
from cqbjax.policies.assortments import draw_assortment, mask_unavailable
from cqbjax.policies.baselines import OptimalPolicy, RandomRouting
from cqbjax.policies.context_free_bandits import LlmRanking, QueueingBandit
from cqbjax.policies.context_views import (
    ContextWrapper,
    Intercept,
    ReplacedContexts,
    append_intercept,
)
from cqbjax.policies.exploration import ForcedExploration
from cqbjax.policies.linear_bandit import LinearBandit
from cqbjax.policies.restarts import RestartingPolicy
from cqbjax.policies.router_policy import RouterPolicy

__all__ = [
    "Acqb", "ContextWrapper", "ForcedExploration", "Intercept", "LinearBandit", "LlmRanking",
    "OptimalPolicy", "QueueingBandit", "RandomRouting", "ReplacedContexts", "RestartingPolicy",
    "RouterPolicy", "append_intercept", "draw_assortment", "mask_unavailable",
]  # fmt: skip
