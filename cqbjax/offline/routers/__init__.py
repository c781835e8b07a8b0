"""Offline-trained routers: `router.fit(split, rho=..., seed=...).predict(embeddings)`."""

from typing import TYPE_CHECKING

from cqbjax.core.lazy import lazy_names
from cqbjax.offline.routers.base import FittedRouter, OfflineSplit, Router

if TYPE_CHECKING:
    from cqbjax.offline.routers.conditional import Conditional
    from cqbjax.offline.routers.knn import KNN, Carrot
    from cqbjax.offline.routers.logistic import Logistic
    from cqbjax.offline.routers.mlp import MLP
    from cqbjax.offline.routers.routerdc import RouterDC
    from cqbjax.offline.routers.umr import UMR
    from cqbjax.offline.routers.zero import Zero

__all__ = [
    "KNN", "MLP", "UMR", "Carrot", "Conditional", "FittedRouter", "Logistic", "OfflineSplit",
    "Router", "RouterDC", "Zero",
]  # fmt: skip

# One router's code is not part of another's cache key, and RouterDC's libraries are slow to import.
__getattr__, __dir__ = lazy_names(__name__)
