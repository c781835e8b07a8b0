"""The policies of a configuration that learn offline, and their training for every seed.

Modules that fit are imported where they are needed, since optax, scikit-learn and SciPy are
slow to import.
"""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence

import jax.numpy as jnp
import numpy as np

from cqbjax.core.inputs import Condition, check_interval, read_when
from cqbjax.core.pytree import check_options
from cqbjax.core.queueing import Schedule
from cqbjax.core.types import Policy, Problem
from cqbjax.datasets import DatasetSource
from cqbjax.engine.progress import Reporter
from cqbjax.engine.spec import PerSeed
from cqbjax.offline import fits
from cqbjax.offline.contrastive import ContrastiveConfig
from cqbjax.offline.fits import FitData
from cqbjax.offline.routers import Router
from cqbjax.policies import Acqb, ContextWrapper, ForcedExploration, ReplacedContexts, RouterPolicy
from cqbjax.policies.exploration import Exploration
from cqbjax.policies.retries import RecallBy, Retry


@read_when(
    precision=Condition("retry", "posterior", "recall"),
    recall_by=Condition("retry", "recall", "cache"),
)
@dataclasses.dataclass(frozen=True)
class TrainedRouter:
    """A router trained on the offline split, paired with a schedule.

    Attributes:
        router: its settings.
        schedule: as in `RouterPolicy`: `oldest` (FIFO) or `joint` (priority) in the paper's study.
        retry: as in `RouterPolicy`: `same` in the paper; `posterior` and `recall` need a
            router that predicts departure probabilities.
        precision: as in `RouterPolicy`.
        recall_by: as in `RouterPolicy`.
        exploration: as in `ForcedExploration`, with `c1` and `explore_rounds`.
    """

    router: Router
    schedule: Schedule = "oldest"
    retry: Retry = "same"
    precision: float = 1.0
    recall_by: RecallBy = "row"
    exploration: Exploration = "none"
    c1: float = 1.0
    explore_rounds: float = 0.0

    def check(self, problem: Problem) -> None:
        """Raise a `ValueError` for an unknown option, or a retry rule that needs log-odds."""
        check_options(self)
        check_interval(self, "(0, inf)", "precision")
        on_departures = getattr(self.router, "on_departures", False)
        if self.retry in ("posterior", "recall") and not on_departures:
            raise ValueError(
                f"retry={self.retry} needs a router that predicts the log-odds of a departure, as "
                f"logistic does, and {type(self.router).__name__} predicts scores"
            )

    def fit(
        self, label: str, data: FitData, seeds: Sequence[int], tuning_seed: int | None
    ) -> dict[int, dict[str, np.ndarray]]:
        """Return for each seed what the router predicts for its pool."""
        tuned_on = {seed: seed if tuning_seed is None else tuning_seed for seed in seeds}
        tuned = fits.tune_routers(self.router, data, list(dict.fromkeys(tuned_on.values())))
        routers = {seed: tuned[other] for seed, other in tuned_on.items()}
        return fits.predict_utilities(routers, data, label)

    def make_policy(
        self, utilities: np.ndarray, scores: np.ndarray | None = None,
        types: np.ndarray | None = None,
    ) -> Policy:  # fmt: skip
        """Return one seed's policy from what `fit` returned.

        Args:
            utilities: [I, N] predicted utilities of its pool.
            scores: [I, G] log-probabilities of the types of prompts, if the router predicts types
                (`Conditional`); else None.
            types: [G, N] departure probabilities of each type.
        """
        routing = RouterPolicy(
            scores=jnp.asarray(utilities if scores is None else scores, float), by="row",
            schedule=self.schedule, retry=self.retry, precision=float(self.precision),
            recall_by=self.recall_by, types=None if types is None else jnp.asarray(types, float),
        )  # fmt: skip
        if self.exploration == "none":
            return routing
        return ForcedExploration(
            policy=routing, exploration=self.exploration, c1=float(self.c1),
            explore_rounds=float(self.explore_rounds),
        )  # fmt: skip

    def make_placeholder(self, problem: Problem) -> Policy:
        """Return a policy with the shapes of a trained one."""
        rows, servers = problem.num_rows, problem.num_servers
        if num_types := getattr(self.router, "num_types", 0):
            types = np.full((num_types, servers), 0.5)
            return self.make_policy(np.zeros(0), np.zeros((rows, num_types)), types)
        return self.make_policy(np.zeros((rows, servers)))


@dataclasses.dataclass(frozen=True)
class ProjectedPolicy:
    """A policy on contexts that a contrastive head projects; with ACQB as `base` it is ACQB-CL.

    Attributes:
        base: the policy.
        head: settings of the head.
    """

    base: Policy
    head: ContrastiveConfig

    def check(self, problem: Problem) -> None:
        """Raise a `ValueError` for a setting that `base` rejects."""
        if hasattr(self.base, "check"):
            self.base.check(problem)

    def fit(
        self, label: str, data: FitData, seeds: Sequence[int], tuning_seed: int | None
    ) -> dict[int, dict[str, np.ndarray]]:
        """Return each seed's `contexts` [I, e] of its pool."""
        from cqbjax.offline import projection

        pools = {seed: data.source.split(seed).pool for seed in seeds}
        projected = projection.project_rows(self.head, data, pools, label)
        return {seed: {"contexts": contexts} for seed, contexts in projected.items()}

    def make_policy(self, contexts: np.ndarray) -> Policy:
        """Return one seed's policy from projected contexts [I, e] of its pool."""
        view = ReplacedContexts(contexts=jnp.asarray(contexts, float))
        return ContextWrapper(policy=self.base, view=view)

    def make_placeholder(self, problem: Problem) -> Policy:
        """Return a policy with the shapes of a trained one."""
        return self.make_policy(np.zeros((problem.num_rows, self.head.outputs)))


@dataclasses.dataclass(frozen=True)
class WarmStart:
    """ACQB that starts from the offline split: a prior of theta and of V (`priors`).

    Attributes:
        base: ACQB.
        weight: weight of an offline prompt in V_0, at least 0; a round's query has weight 1.
        ridge: weight of |theta_0j|^2 / 2 in the fit of theta_0.
        share: share of a context's squared norm that a constant coordinate takes (an intercept per
            server, `policies.Intercept`); 0 is none.
        head: projects the contexts; None: they are the embeddings.
    """

    base: Acqb
    weight: float = 0.1
    ridge: float = 1.0
    share: float = 0.5
    head: ContrastiveConfig | None = None

    def check(self, problem: Problem) -> None:
        """Raise a `ValueError` for a setting out of range, naming what is allowed."""
        check_interval(self, "[0, inf)", "weight")
        check_interval(self, "(0, inf)", "ridge")  # theta_0 has to be unique
        check_interval(self, "[0, 1)", "share")
        dataclasses.replace(self.base, estimator="newton_cg").check(problem)

    def fit(
        self, label: str, data: FitData, seeds: Sequence[int], tuning_seed: int | None
    ) -> dict[int, dict[str, np.ndarray]]:
        """Return each seed's prior: `contexts` [I, e] and `offset` [I, N] of its pool."""
        from cqbjax.offline import priors

        lambda0 = float(self.base.lambda0)
        return priors.fit_priors(
            label, data, seeds, self.weight, self.ridge, lambda0, self.share, self.head
        )

    def make_policy(self, contexts: np.ndarray, offset: np.ndarray) -> Policy:
        """Return one seed's policy from its prior: contexts [I, e] and offset [I, N]."""
        start = jnp.asarray(offset, float)
        acqb = dataclasses.replace(self.base, estimator="newton_cg", offset=start)
        view = ReplacedContexts(contexts=jnp.asarray(contexts, float))
        return ContextWrapper(policy=acqb, view=view)

    def make_placeholder(self, problem: Problem) -> Policy:
        """Return a policy with the shapes of a trained one."""
        dim = problem.dim if self.head is None else self.head.outputs
        contexts = np.zeros((problem.num_rows, dim + (self.share > 0)))
        return self.make_policy(contexts, np.zeros((problem.num_rows, problem.num_servers)))


OfflinePolicy = TrainedRouter | ProjectedPolicy | WarmStart


def select_untrained(policies: Mapping[str, Policy | OfflinePolicy]) -> dict[str, OfflinePolicy]:
    """Return the policies that are trained offline."""
    return {label: one for label, one in policies.items() if isinstance(one, OfflinePolicy)}


def train_policies(
    policies: Mapping[str, Policy | OfflinePolicy], source: DatasetSource, seeds: Sequence[int],
    cache_dir: pathlib.Path, tuning_seed: int | None, progress: Reporter | None = None,
) -> dict[str, Policy | PerSeed]:  # fmt: skip
    """Train every `OfflinePolicy` for each seed, and return the policies for `sweep`.

    A fit in `cache_dir` is reused: its key is a hash of the table, the seed's split and the
    settings.

    Args:
        policies: label -> policy.
        source: the dataset.
        seeds: [S] the seeds of the sweep, in its order.
        cache_dir: fits go to `cache_dir/<dataset>/`.
        tuning_seed: the seed on whose offline split the hyper-parameters of routers are
            cross-validated, once for all seeds. This split may hold prompts of other seeds' pools.
            None: they are cross-validated for each seed, on the offline split of that seed.
        progress: reports the fits.

    Raises:
        ValueError: an evaluation prompt in a split, a damaged file, or a head that learns nothing.
    """
    data, seeds = fits.make_fit_data(source, cache_dir, progress), [int(seed) for seed in seeds]
    trained: dict[str, Policy | PerSeed] = {}
    for label, policy in policies.items():
        if isinstance(policy, OfflinePolicy):
            fitted = policy.fit(label, data, seeds, tuning_seed)
            trained[label] = PerSeed([policy.make_policy(**fitted[seed]) for seed in seeds])
        else:
            trained[label] = policy
    return trained
