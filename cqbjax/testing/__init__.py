"""Checks of the contracts that user-defined policies, sources and models must satisfy.

from cqbjax.testing import check_policy, check_service, check_source, check_users
check_policy(MyPolicy(epsilon=0.1))
check_source(MySource(rows=20))
check_users(MyUsers())
check_service(MyService())
"""

from cqbjax.core.contract import ContractError
from cqbjax.testing.fairness import check_fairness
from cqbjax.testing.instances import PROBLEM
from cqbjax.testing.policies import check_policy
from cqbjax.testing.scenarios import check_service, check_source, check_users

__all__ = [
    "PROBLEM", "ContractError", "check_fairness", "check_policy", "check_service", "check_source",
    "check_users",
]  # fmt: skip
