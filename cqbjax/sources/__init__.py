"""Sources: where queries come from."""

from cqbjax.sources.arrivals import Arriving, Bursty, Traced, traced
from cqbjax.sources.routing import Routing
from cqbjax.sources.synthetic import Synthetic

__all__ = ["Arriving", "Bursty", "Routing", "Synthetic", "Traced", "traced"]
