"""From words to policies: each seed's routers and heads, trained or kept, as `sweep` takes them."""

import pathlib
from collections.abc import Mapping, Sequence

from cqbjax.core.types import Policy
from cqbjax.datasets import DatasetSource
from cqbjax.offline.fits import pool_scores, read
from cqbjax.offline.learnt import Learnt, Projected, Trained, Warm
from cqbjax.sweeping.parts import PerSeed
from cqbjax.sweeping.progress import Reporter, Silent


def per_seed(
    policies: Mapping[str, Policy | Learnt],
    source: DatasetSource,
    seeds: Sequence[int],
    cache_dir: pathlib.Path,
    tuning_seed: int | None,
    progress: Reporter | None = None,
) -> dict[str, Policy | PerSeed]:
    """Train what is to be trained for every seed and return what `sweep` takes.

    Nothing is trained that `cache_dir` holds already: the key is a hash of the table, the seed's
    split and the settings.

    Args:
        policies: label -> policy, of which any may be `Learnt`.
        source: the dataset.
        seeds: [S] the seeds of the sweep, in its order.
        cache_dir: fits go to `cache_dir/<dataset>/`.
        tuning_seed: None cross-validates the hyper-parameters of routers on every seed's own
            offline split; a number once, on that seed's, which may hold prompts of other seeds'
            pools.
        progress: told of the fits.

    Raises:
        ValueError: an evaluation prompt in a split, a damaged file, or a head that learns nothing.
    """
    progress = progress or Silent()
    if not any(isinstance(policy, Learnt) for policy in policies.values()):
        return dict(policies)  # type: ignore[arg-type]
    data = read(source, cache_dir)
    splits = {int(seed): source.split(int(seed)) for seed in seeds}
    made: dict[str, Policy | PerSeed] = {}
    for label, policy in policies.items():
        if isinstance(policy, Trained):
            rows = pool_scores(label, policy.router, data, splits, tuning_seed, progress)
            made[label] = PerSeed([policy.policy(each) for each in rows])
        elif isinstance(policy, Projected):
            # Brings flax and optax, slow to import: only where a head is trained or used.
            from cqbjax.offline.heads import pool_contexts

            rows = pool_contexts(label, policy.head, data, splits, progress)
            made[label] = PerSeed([policy.policy(each) for each in rows])
        elif isinstance(policy, Warm):
            # Brings scikit-learn and SciPy, slow to import too.
            from cqbjax.offline.warm import pool_priors

            priors = pool_priors(label, policy, data, splits, progress)
            made[label] = PerSeed([policy.policy(each) for each in priors])
        else:
            made[label] = policy
    return made
