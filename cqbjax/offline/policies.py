"""The policies that learn offline, as a configuration names them.

Each says how what it goes by is `fitted` for every seed and how that makes a `policy`; what fits
with it is imported where it does, since flax, optax, scikit-learn and SciPy are slow to import.
"""

import dataclasses
import math
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from cqbjax.core.inputs import is_number
from cqbjax.core.pytree import check_options
from cqbjax.core.queueing import Schedule
from cqbjax.core.types import Policy, Problem
from cqbjax.offline.contrastive import ContrastiveConfig
from cqbjax.offline.fits import Data, pool_scores
from cqbjax.offline.routers import Router
from cqbjax.offline.routers.base import is_on_departures
from cqbjax.policies import Acqb, ContextWrapper, ReplacedContexts, RouterPolicy
from cqbjax.policies.retries import RecallBy, Retry, check_precision


@dataclasses.dataclass(frozen=True)
class Trained:
    """A router trained on the offline split, paired with a schedule.

    Attributes:
        router: its settings.
        schedule: as in `RouterPolicy`: `oldest` (FIFO) or `joint` (priority) in the paper's study.
        retry: as in `RouterPolicy`: `same` in the paper; `posterior` and `recall` for routers on
            departures alone.
        precision: as in `RouterPolicy`.
        recall_by: as in `RouterPolicy`.
    """

    router: Router
    schedule: Schedule = "oldest"
    retry: Retry = "same"
    precision: float = 1.0
    recall_by: RecallBy = "row"

    def check(self, problem: Problem) -> None:
        """Refuse an unknown word, and a posterior of what is no log-odds.

        Raises:
            ValueError: naming it and what there is.
        """
        del problem
        check_options(self)
        check_precision(self.precision)
        if self.retry in ("posterior", "recall") and not is_on_departures(self.router):
            raise ValueError(
                f"retry={self.retry} needs a router that predicts the log-odds of a departure, as "
                f"logistic does, and {type(self.router).__name__} predicts scores"
            )

    def fitted(
        self, label: str, data: Data, seeds: Sequence[int], tuning_seed: int | None
    ) -> list[np.ndarray]:
        """Return each seed's predicted utilities [I, N] of its pool."""
        return pool_scores(label, self.router, data, seeds, tuning_seed)

    def policy(self, rows: np.ndarray) -> Policy:
        """Make one seed's policy from predicted utilities [I, N] of its pool."""
        return RouterPolicy(
            scores=jnp.asarray(rows, float), by="row", schedule=self.schedule, retry=self.retry,
            precision=float(self.precision), recall_by=self.recall_by,
        )  # fmt: skip

    def blank(self, problem: Problem) -> Policy:
        """Make a policy of the shapes that a trained one would have."""
        return self.policy(np.zeros((problem.num_rows, problem.num_servers)))


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

    def fitted(
        self, label: str, data: Data, seeds: Sequence[int], tuning_seed: int | None
    ) -> list[np.ndarray]:
        """Return each seed's contexts [I, e] of its pool."""
        from cqbjax.offline.heads import contexts

        pools = {seed: data.source.split(seed).pool for seed in seeds}
        return list(contexts(self.head, data, pools, label).values())

    def policy(self, rows: np.ndarray) -> Policy:
        """Make one seed's policy from projected contexts [I, e] of its pool."""
        view = ReplacedContexts(contexts=jnp.asarray(rows, float))
        return ContextWrapper(policy=self.base, view=view)

    def blank(self, problem: Problem) -> Policy:
        """Make a policy of the shapes that a trained one would have."""
        return self.policy(np.zeros((problem.num_rows, self.head.outputs)))


@dataclasses.dataclass(frozen=True)
class Warm:
    """ACQB that starts from the offline split: a prior of theta and of V (`priors`).

    Attributes:
        base: ACQB.
        weight: what an offline prompt counts in V_0 beside a round's query, at least 0.
        ridge: weight of |theta_0j|^2 / 2 in the fit of theta_0.
        share: of a context's squared norm, what a constant coordinate takes (an intercept a
            server, `policies.Intercept`); 0 is none.
        head: of the contexts; None is the embedding itself.
    """

    base: Acqb
    weight: float = 0.1
    ridge: float = 1.0
    share: float = 0.5
    head: ContrastiveConfig | None = None

    def check(self, problem: Problem) -> None:
        """Refuse settings out of range.

        Raises:
            ValueError: naming the setting and what is allowed.
        """
        for key in ("weight", "ridge", "share"):
            value = getattr(self, key)
            if not is_number(value) or not 0 <= float(value) < math.inf:
                raise ValueError(f"{key}={value} must be a finite number and not negative")
        if self.ridge == 0:
            raise ValueError("ridge=0 must be above 0: theta_0 has to be unique")
        if self.share >= 1:
            raise ValueError(f"share={self.share} must be below 1")
        self._acqb().check(problem)

    def _acqb(self) -> Acqb:
        return dataclasses.replace(self.base, estimator="newton_cg")

    def fitted(
        self, label: str, data: Data, seeds: Sequence[int], tuning_seed: int | None
    ) -> Sequence[tuple[np.ndarray, np.ndarray]]:
        """Return each seed's prior: contexts [I, e] and offset [I, N] of its pool."""
        from cqbjax.offline.priors import Settings, pool_priors

        lambda0 = float(self.base.lambda0)
        settings = Settings(self.weight, self.ridge, self.share, self.head, lambda0)
        return pool_priors(label, settings, data, seeds)

    def policy(self, prior: tuple[np.ndarray, np.ndarray]) -> Policy:
        """Make one seed's policy from its prior: contexts [I, e] and offset [I, N]."""
        contexts, offset = (jnp.asarray(part, float) for part in prior)
        acqb = dataclasses.replace(self._acqb(), offset=offset)
        return ContextWrapper(policy=acqb, view=ReplacedContexts(contexts=contexts))

    def blank(self, problem: Problem) -> Policy:
        """Make a policy of the shapes that a trained one would have."""
        dim = problem.dim if self.head is None else self.head.outputs
        contexts = np.zeros((problem.num_rows, dim + (self.share > 0)))
        return self.policy((contexts, np.zeros((problem.num_rows, problem.num_servers))))


Learnt = Trained | Projected | Warm
