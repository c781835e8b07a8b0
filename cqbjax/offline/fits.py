"""Policies that learn from a seed's offline split before its run: routers and projection heads.

A configuration names a `Trained` or a `Projected`; `per_seed` trains one for every seed, keeps what
came out by content, and returns what `sweep` takes. The fits know neither K nor the arrival rate.
"""

import dataclasses
import hashlib
import importlib.metadata
import json
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import platformdirs
import threadpoolctl

from cqbjax import rng
from cqbjax.datasets import RoutingSource, Split, raw_utility
from cqbjax.files import arrays_digest, content_key, write_atomic
from cqbjax.offline.contrastive import ContrastiveConfig
from cqbjax.offline.routers import OfflineSplit, Router
from cqbjax.policies import Embedded, Routed
from cqbjax.policies.simple import Schedule
from cqbjax.pytree import check_words
from cqbjax.sweeping.plan import PerSeed
from cqbjax.sweeping.progress import Reporter, Silent
from cqbjax.types import Policy, Problem

if TYPE_CHECKING:
    from cqbjax.offline import projection

FORMAT = "1"  # raise when the same settings would give another fit
# Libraries whose versions are part of a fit's key.
FITTING = ("scikit-learn", "jax", "flax", "optax", "numpy")
# Heads trained by one call: bounds the memory of the samples, whose cosines are [n, n] a seed.
HEADS_AT_ONCE = 20
# scikit-learn's fits are small: on a busy machine threads that wait for each other cost seven times
# as much processor time as one.
ONE_THREAD = 1


@dataclasses.dataclass(frozen=True)
class Trained:
    """A router trained on the offline split, paired with a schedule.

    Attributes:
        router: its settings.
        schedule: as in `Routed`: `oldest` (FIFO) or `joint` (priority) in the study.
    """

    router: Router
    schedule: Schedule = "oldest"

    def check(self, problem: Problem) -> None:
        """Refuse an unknown schedule.

        Raises:
            ValueError: naming it and those that there are.
        """
        del problem
        check_words(self)

    def policy(self, rows: np.ndarray) -> Policy:
        """Make one seed's policy from predicted utilities [I, N] of its pool."""
        return Routed(scores=jnp.asarray(rows, float), by="row", schedule=self.schedule)


@dataclasses.dataclass(frozen=True)
class Projected:
    """A policy whose contexts go through a contrastive head: ACQB-CL around ACQB.

    Attributes:
        base: the policy.
        head: settings of the head.
    """

    base: Policy
    head: ContrastiveConfig

    def check(self, problem: Problem) -> None:
        """Refuse what the policy itself refuses.

        Raises:
            ValueError: naming the setting and what is allowed.
        """
        if hasattr(self.base, "check"):
            self.base.check(problem)

    def policy(self, rows: np.ndarray) -> Policy:
        """Make one seed's policy from projected contexts [I, e] of its pool."""
        return Embedded(policy=self.base, contexts=jnp.asarray(rows, float))


Learnt = Trained | Projected


class Data(NamedTuple):
    """What fits are made from.

    Attributes:
        source: the dataset.
        embeddings: [P, d] float32.
        digest: hash of embeddings, performance and cost.
        folder: where fits are kept.
    """

    source: RoutingSource
    embeddings: np.ndarray
    digest: str
    folder: pathlib.Path

    def offline(self, rows: np.ndarray) -> OfflineSplit:
        """Return what a router may learn from: these rows of the table."""
        table = self.source.table
        return OfflineSplit(self.embeddings[rows], table.performance[rows], self.source.cost[rows])


def cache_folder(cache_dir: str | None) -> pathlib.Path:
    """Return where fits are kept: `cache_dir`, or a folder of the user's cache."""
    if cache_dir is not None:
        return pathlib.Path(cache_dir)
    return pathlib.Path(platformdirs.user_cache_dir("cqbjax")) / "fits"


def per_seed(
    policies: Mapping[str, Policy | Learnt],
    source: RoutingSource,
    seeds: Sequence[int],
    cache_dir: pathlib.Path,
    tuning_seed: int | None,
    progress: Reporter | None = None,
) -> dict[str, Policy | PerSeed]:
    """Train what is to be trained for every seed and return what `sweep` takes.

    Nothing is trained that `cache_dir` holds already: the key is a hash of the table, the seed's
    split and the settings.

    Args:
        policies: label -> policy, `Trained` or `Projected`.
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
            rows = _scores(label, policy.router, data, splits, tuning_seed, progress)
            made[label] = PerSeed([policy.policy(each) for each in rows])
        elif isinstance(policy, Projected):
            rows = _contexts(label, policy.head, data, splits, progress)
            made[label] = PerSeed([policy.policy(each) for each in rows])
        else:
            made[label] = policy
    return made


def read(source: RoutingSource, cache_dir: pathlib.Path) -> Data:
    """Return the data of a dataset's fits."""
    embeddings = np.asarray(source.source.contexts, np.float32)
    digest = arrays_digest([embeddings, source.table.performance, source.cost])
    return Data(source, embeddings, digest, cache_dir / source.dataset)


def _scores(
    label: str, router: Router, data: Data, splits: Mapping[int, Split],
    tuning_seed: int | None, progress: Reporter,
) -> list[np.ndarray]:  # fmt: skip
    """Return each seed's predicted utilities of its pool, [I, N]."""
    found = []
    with progress.steps(f"fitting {label}", len(splits)) as done:
        if tuning_seed is not None:
            router = tuned(router, data, tuning_seed)
        for seed, parts in splits.items():
            fixed = tuned(router, data, seed) if tuning_seed is None else router
            found.append(scores(fixed, data, parts, seed))
            done(1)
    return found


def scores(router: Router, data: Data, parts: Split, seed: int) -> np.ndarray:
    """Return predicted utilities [I, N] of a seed's pool, fitted on its offline split or kept.

    Args:
        router: settings.
        data: from `read`.
        parts: the seed's split.
        seed: of the fit.
    """
    rho = data.source.rho
    path = data.folder / f"{_key(data, parts, seed, router, rho)}.npy"
    if not path.is_file():
        with threadpoolctl.threadpool_limits(ONE_THREAD):
            fitted = router.fit(data.offline(parts.offline), rho=rho, seed=seed)
        _save(path, fitted.predict(data.embeddings[parts.pool]))
    return _load(path)


def tuned(router: Router, data: Data, seed: int) -> Router:
    """Return the router with hyper-parameters cross-validated on the offline split of `seed`.

    Args:
        router: settings.
        data: from `read`.
        seed: of the split, and of the folds.
    """
    parts, rho = data.source.split(seed), data.source.rho
    path = data.folder / f"{_key(data, parts, seed, 'tuned', router, rho)}.json"
    if not path.is_file():
        with threadpoolctl.threadpool_limits(ONE_THREAD):
            chosen = router.tune(data.offline(parts.offline), rho=rho, seed=seed)
        text = json.dumps(dataclasses.asdict(chosen))  # type: ignore[call-overload]
        write_atomic(path, text.encode())
    fields = json.loads(path.read_text())
    return type(router)(**{key: _frozen(value) for key, value in fields.items()})


def _frozen(value: Any) -> Any:
    """Turn JSON's lists back into tuples."""
    return tuple(_frozen(each) for each in value) if isinstance(value, list) else value


def heads(
    source: RoutingSource,
    seeds: Sequence[int],
    cache_dir: pathlib.Path,
    head: ContrastiveConfig,
    progress: Reporter | None = None,
) -> list[pathlib.Path]:
    """Return the file of each seed's contrastive head; those that are not there yet are trained.

    `projection.load_heads` reads one, `projection.project` applies it.

    Args:
        source: the dataset.
        seeds: [S] of the runs.
        cache_dir: heads lie at `cache_dir/<dataset>/head_<seed>_<hash>.msgpack`.
        head: settings.
        progress: told of the training.

    Raises:
        ValueError: an evaluation prompt in a split, or a head that learns nothing.
    """
    data = read(source, cache_dir)
    splits = {int(seed): source.split(int(seed)) for seed in seeds}
    return _heads("acqb_cl", head, data, splits, progress or Silent())


def _contexts(
    label: str, head: ContrastiveConfig, data: Data, splits: Mapping[int, Split], progress: Reporter
) -> list[np.ndarray]:
    """Return each seed's projected contexts of its pool, [I, e]."""
    from cqbjax.offline import projection  # flax and optax: only where a head is trained or used

    found = []
    for path, parts in zip(
        _heads(label, head, data, splits, progress), splits.values(), strict=True
    ):
        params, config = projection.load_heads(path)
        pool = jnp.asarray(data.embeddings[parts.pool])
        found.append(np.asarray(projection.project(params, pool, config)))
    return found


def _heads(
    label: str, head: ContrastiveConfig, data: Data, splits: Mapping[int, Split], progress: Reporter
) -> list[pathlib.Path]:
    """Train the heads that are not kept yet and return the file of every seed's."""
    from cqbjax.offline import projection

    paths = {
        seed: data.folder / f"head_{seed}_{_key(data, parts, seed, head, data.source.rho)}.msgpack"
        for seed, parts in splits.items()
    }
    missing = [seed for seed, path in paths.items() if not path.is_file()]
    with progress.steps(f"fitting {label}", len(missing)) as done:
        for batch in _batches(missing, HEADS_AT_ONCE):
            stacked = _fit_heads(head, data, [splits[seed] for seed in batch], batch)
            for i, seed in enumerate(batch):
                params = jax.tree.map(lambda leaf: leaf[i], stacked)  # noqa: B023
                projection.save_heads(paths[seed], params, head)
            done(len(batch))
    return list(paths.values())


def _fit_heads(
    head: ContrastiveConfig, data: Data, splits: Sequence[Split], seeds: Sequence[int]
) -> "projection.Params":
    """Train the heads of these seeds at once, each on its own offline split."""
    from cqbjax.offline import projection

    table, source = data.source.table, data.source
    available = np.zeros((len(seeds), table.num_prompts), bool)
    for row, parts in zip(available, splits, strict=True):
        row[parts.offline] = True
    keys = [rng.stream_key(rng.round_key(rng.run_key(seed), 0), rng.Stream.HEAD) for seed in seeds]
    utilities = raw_utility(table.performance, source.cost, source.rho)
    return projection.fit_heads(jnp.stack(keys), data.embeddings, utilities, available, head)[0]


def _batches(seeds: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    for start in range(0, len(seeds), size):
        yield seeds[start : start + size]


def _key(data: Data, parts: Split, seed: int, *settings: Any) -> str:
    """Hash what a fit depends on."""
    split = hashlib.sha256(
        np.concatenate([parts.pool, [-1], parts.offline]).astype(np.int64).tobytes()
    )
    versions = [f"{name} {importlib.metadata.version(name)}" for name in FITTING]
    words = (FORMAT, *versions, data.digest, split.hexdigest(), str(seed), *map(repr, settings))
    return content_key(*words)


def _save(path: pathlib.Path, rows: np.ndarray) -> None:
    rows = np.asarray(rows, np.float32)
    write_atomic(path, lambda file: np.save(file, rows, allow_pickle=False))


def _load(path: pathlib.Path) -> np.ndarray:
    try:
        return np.asarray(np.load(path, allow_pickle=False))
    except (OSError, ValueError, EOFError) as error:
        raise ValueError(f"{path}: not readable, delete it to fit again: {error}") from error
