"""Policies: how a query and an assortment are picked, and what is learnt.

The labels used in configurations and results are `conf/policy/*.yaml`; `_template.py` is a policy
to copy.
"""

from cqbjax.policies.acqb import Acqb
from cqbjax.policies.contexts import Embedded, WithIntercept, with_intercept
from cqbjax.policies.queueing_bandits import QueueingBandit
from cqbjax.policies.simple import Optimal, RandomRouting, Routed

__all__ = [
    "Acqb", "Embedded", "Optimal", "QueueingBandit", "RandomRouting", "Routed", "WithIntercept",
    "with_intercept",
]  # fmt: skip
