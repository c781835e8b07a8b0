"""What learns from a seed's offline split before its run: routers and projection heads.

Three words, in the order in which a policy meets them::

    Trained      what a configuration says of a router: its settings and a schedule
                 (conf/policy/knn.yaml)
    Projected    what it says of ACQB-CL: a policy, and the settings of the head that its contexts
                 go through (conf/policy/acqb_cl.yaml); `Learnt` is either
    PerSeed      what `sweep` is given in their place: one policy a seed. Of a `Trained` come
                 `policies.Routed` by the router's predictions for each seed's pool, of a
                 `Projected` come `policies.OnContexts` on each pool's projected contexts

`training.per_seed` turns the first two into the third. Each seed learns from its own offline split,
every prompt outside the pool that its runs draw, so that no policy has seen what it is judged on.
Each module imports only those before it::

    contrastive                 the head of Algorithm 3: its settings, sample, pairs and loss
    projection routers/         its network, training and file; one router a module
    learnt                      the words
    fits                        what fits are made from; routers' fits, kept by content
    heads                       the heads' fits
    training                    from words to policies, for every seed
"""

from cqbjax.offline.learnt import Learnt, Projected, Trained

__all__ = ["Learnt", "Projected", "Trained"]
