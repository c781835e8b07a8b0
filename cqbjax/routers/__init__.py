"""Offline-trained routers: `router.fit(split, rho=..., seed=...).predict(embeddings)`."""

from cqbjax.routers.base import FittedRouter, OfflineSplit, Router
from cqbjax.routers.carrot import Carrot
from cqbjax.routers.knn import KNN
from cqbjax.routers.mlp import MLP
from cqbjax.routers.routerdc import RouterDC
from cqbjax.routers.umr import UMR
from cqbjax.routers.zero import Zero

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
