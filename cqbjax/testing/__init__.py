"""Checks of the contract that users call on their own policies, sources, users and services."""

from cqbjax.testing.contract import (
    ContractError,
    check_fair,
    check_policy,
    check_service,
    check_source,
    check_users,
)

__all__ = [
    "ContractError", "check_fair", "check_policy", "check_service", "check_source", "check_users",
]  # fmt: skip
