"""Checks that anybody can call: the contract, an independent reference, worlds of known answer."""

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
