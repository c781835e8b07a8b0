"""How a breach of the contract is told."""


class ContractError(AssertionError):
    """A policy breaks the contract of `cqbjax.core.types.Policy`; the message says which part."""


def require(holds: bool, otherwise: str) -> None:
    """Raise where a part of the contract does not hold."""
    if not holds:
        raise ContractError(otherwise)
