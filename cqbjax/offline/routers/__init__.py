"""Offline-trained routers: `router.fit(split, rho=..., seed=...).predict(embeddings)`."""

from cqbjax.offline.routers.base import FittedRouter, OfflineSplit, Router
from cqbjax.offline.routers.carrot import Carrot
from cqbjax.offline.routers.knn import KNN
from cqbjax.offline.routers.mlp import MLP
from cqbjax.offline.routers.routerdc import RouterDC
from cqbjax.offline.routers.umr import UMR
from cqbjax.offline.routers.zero import Zero

__all__ = [
    "KNN",
    "MLP",
    "UMR",
    "Carrot",
    "FittedRouter",
    "OfflineSplit",
    "Router",
    "RouterDC",
    "Zero",
]
