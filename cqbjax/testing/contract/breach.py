"""How a breach of the contract is told."""


class ContractError(AssertionError):
    """A policy or source breaks its contract (`cqbjax.core.types`); the message says which part."""


def require(holds: bool, otherwise: str) -> None:
    """Raise where a part of the contract does not hold."""
    if not holds:
        raise ContractError(otherwise)
