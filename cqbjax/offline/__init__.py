"""Offline learning before a run: routers, the contrastive head of ACQB-CL, and ACQB's warm start.

A configuration names one of three policies; `OfflinePolicy` is the union of their types::

    TrainedRouter    a router's settings and a schedule (conf/policy/knn.yaml)
    ProjectedPolicy  a policy, and the settings of the head that projects its contexts
                     (conf/policy/acqb_cl.yaml)
    WarmStart        ACQB, and the weight of graded answers in its prior
                     (conf/policy/acqb_warm.yaml)

`policies.train_policies` turns each into a `PerSeed`, one policy per seed, which `sweep` takes.
Each seed learns from its own offline split: the prompts that are not in the pool of its runs. So no
policy has seen a prompt on which it is evaluated.
Each module imports only those before it::

    contrastive                 the head of Algorithm 3: settings, sample, pairs and loss
    routers/                    the routers
    fits                        cached fits of each seed; trains the routers
    projection                  the head: network, training, file, and each seed's head
    priors                      ACQB's prior from logs
    policies                    the policies of a configuration, and their training
    value                       routers evaluated without a queue: the value of contexts
"""

from typing import TYPE_CHECKING

from cqbjax.core.lazy import lazy_names
from cqbjax.offline.policies import OfflinePolicy, ProjectedPolicy, TrainedRouter, WarmStart

if TYPE_CHECKING:
    from cqbjax.offline import contrastive, fits, projection, routers

__all__ = [
    "OfflinePolicy", "ProjectedPolicy", "TrainedRouter", "WarmStart", "contrastive", "fits",
    "projection", "routers",
]  # fmt: skip

__getattr__, __dir__ = lazy_names(__name__)
