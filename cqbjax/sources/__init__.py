"""Sources: where queries come from, and wrappers that change their arrivals or preferences."""

from cqbjax.sources.arrivals import (
    ArrivalWrapper,
    BatchArrivals,
    BurstyArrivals,
    TraceArrivals,
    convert_trace,
)
from cqbjax.sources.coin import Coin
from cqbjax.sources.partly_linear import PartlyLinear
from cqbjax.sources.preference_drift import DriftWrapper
from cqbjax.sources.prompt_pool import PromptPool
from cqbjax.sources.success_probabilities import SuccessProbabilities
from cqbjax.sources.synthetic import Synthetic

__all__ = ["ArrivalWrapper", "BatchArrivals", "BurstyArrivals", "Coin", "DriftWrapper",
           "PartlyLinear", "PromptPool", "SuccessProbabilities", "Synthetic", "TraceArrivals",
           "convert_trace"]  # fmt: skip
