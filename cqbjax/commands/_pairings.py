"""Labels of routers: a router, what it does with a retry, and how it schedules, three words of one.

`conf/router/knn.yaml`, or such a file of the user's own, is offered as the policies `knn`,
`knn_priority`, `knn_fallback_least_served` and so on: a file for each would be nine for a router.
"""

import itertools
from collections.abc import Iterable
from pathlib import Path

from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

# What stands in a label, and what it is in `offline.Trained`.
RETRIES = {"": "same", "_fallback": "fallback", "_posterior": "posterior", "_recall": "recall"}
SCHEDULES = {"": "oldest", "_least_served": "least_served", "_priority": "joint"}
# The labels of a router in short, for a list of choices.
PAIRED = "[_fallback|_posterior|_recall][_least_served|_priority]"


def offer_routers(folders: Iterable[Path]) -> list[str]:
    """Offer every pairing of the routers of some configuration folders as a policy.

    Args:
        folders: each may hold `router/*.yaml`.

    Returns:
        Their labels.
    """
    labels = []
    for path in (path for folder in folders for path in sorted((folder / "router").glob("*.yaml"))):
        router = OmegaConf.load(path)
        for retry, schedule in itertools.product(RETRIES, SCHEDULES):
            label = f"{path.stem}{retry}{schedule}"
            node = {
                "_target_": "cqbjax.offline.Trained",
                "router": router,
                "retry": RETRIES[retry],
                "schedule": SCHEDULES[schedule],
                "precision": "${precision}",
            }
            ConfigStore.instance().store(name=label, group="policy", node={label: node})
            labels.append(label)
    return labels
