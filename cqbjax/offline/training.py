"""From words to policies: each seed's routers and heads, trained or kept, as `sweep` takes them."""

import pathlib
from collections.abc import Mapping, Sequence

from cqbjax.core.types import Policy
from cqbjax.datasets import DatasetSource
from cqbjax.engine.progress import Reporter
from cqbjax.engine.spec import PerSeed
from cqbjax.offline.fits import read
from cqbjax.offline.policies import Learnt


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
    data, seeds = read(source, cache_dir, progress), [int(seed) for seed in seeds]
    made: dict[str, Policy | PerSeed] = {}
    for label, policy in policies.items():
        if isinstance(policy, Learnt):
            fitted = policy.fitted(label, data, seeds, tuning_seed)
            made[label] = PerSeed([policy.policy(each) for each in fitted])  # type: ignore[arg-type]
        else:
            made[label] = policy
    return made
