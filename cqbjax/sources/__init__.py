"""Sources: where queries come from."""

from cqbjax.sources.arrivals import Arriving, Batches, Bursty, Traced, traced
from cqbjax.sources.coin import Coin
from cqbjax.sources.drifting import Drifting
from cqbjax.sources.routing import Routing
from cqbjax.sources.synthetic import Synthetic

__all__ = ["Arriving", "Batches", "Bursty", "Coin", "Drifting", "Routing", "Synthetic", "Traced",
           "traced"]  # fmt: skip
