"""The words with which a configuration names a policy that learns offline: no fit is here."""

import dataclasses

import jax.numpy as jnp
import numpy as np

from cqbjax.offline.contrastive import ContrastiveConfig
from cqbjax.offline.routers import Router
from cqbjax.policies import OnContexts, Replaced, Routed
from cqbjax.pytree import check_words
from cqbjax.queueing import Schedule
from cqbjax.types import Policy, Problem


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
        view = Replaced(contexts=jnp.asarray(rows, float))
        return OnContexts(policy=self.base, view=view)


Learnt = Trained | Projected
