"""Sources: where queries come from."""

from cqbjax.sources.routing import Routing
from cqbjax.sources.synthetic import Synthetic

__all__ = ["Routing", "Synthetic"]
