"""Offline-trained routers: `router.fit(split, rho=..., seed=...).predict(embeddings)`."""

import importlib
from typing import TYPE_CHECKING, Any

from cqbjax.offline.routers.base import FittedRouter, OfflineSplit, Router

if TYPE_CHECKING:
    from cqbjax.offline.routers.knn import KNN, Carrot
    from cqbjax.offline.routers.logistic import Logistic
    from cqbjax.offline.routers.mlp import MLP
    from cqbjax.offline.routers.routerdc import RouterDC
    from cqbjax.offline.routers.umr import UMR
    from cqbjax.offline.routers.zero import Zero

__all__ = [
    "KNN", "MLP", "UMR", "Carrot", "FittedRouter", "Logistic", "OfflineSplit", "Router", "RouterDC",
    "Zero",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import a router from its module on first use.

    One router's code is not part of another's cache key, and RouterDC's libraries are slow to
    import.
    """
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "knn" if name == "Carrot" else name.lower()
    globals()[name] = getattr(importlib.import_module(f"{__name__}.{module}"), name)
    return globals()[name]
