"""Policies: how a query and an assortment are picked, and what is learnt.

The labels used in configurations and results are `conf/policy/*.yaml`; `_template.py` is a policy
to copy.
"""

from cqbjax.policies.acqb import Acqb
from cqbjax.policies.baselines import Optimal, RandomRouting
from cqbjax.policies.by_llm import ByLlm
from cqbjax.policies.contexts import Intercept, OnContexts, Replaced, with_intercept
from cqbjax.policies.linear import Linear
from cqbjax.policies.queueing_bandits import QueueingBandit
from cqbjax.policies.routed import Routed

__all__ = [
    "Acqb", "ByLlm", "Intercept", "Linear", "OnContexts", "Optimal", "QueueingBandit",
    "RandomRouting", "Replaced", "Routed", "with_intercept",
]  # fmt: skip
