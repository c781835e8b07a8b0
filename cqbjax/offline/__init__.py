"""What learns from a seed's offline split before its run: routers, projection heads, priors.

Four words, in the order in which a policy meets them::

    Trained      what a configuration says of a router: its settings and a schedule
                 (conf/policy/knn.yaml)
    Projected    what it says of ACQB-CL: a policy, and the settings of the head that its contexts
                 go through (conf/policy/acqb_cl.yaml)
    Warm         what it says of ACQB that starts from logs: ACQB, and how much the logs count
                 (conf/policy/acqb_warm.yaml); `Learnt` is any of the three
    PerSeed      what `sweep` is given in their place: one policy a seed. Of a `Trained` come
                 `policies.RouterPolicy` by the router's predictions for each seed's pool, of a
                 `Projected` or a `Warm` come `policies.ContextWrapper` on each pool's contexts

`training.per_seed` turns the first three into the last. Each seed learns from its own offline
split, every prompt outside the pool that its runs draw, so that no policy has seen what it is
judged on.
Each module imports only those before it::

    contrastive                 the head of Algorithm 3: its settings, sample, pairs and loss
    projection routers/         its network, training and file; one router a module
    fits                        a fit a seed, kept by all that it depends on; those of routers
    heads                       those of heads
    priors                      ACQB's prior from logs, and its fits
    policies                    the words
    training                    from words to policies, for every seed
"""

from cqbjax.offline.policies import Learnt, Projected, Trained, Warm

__all__ = ["Learnt", "Projected", "Trained", "Warm"]
