"""What is played: a configuration, and the policies of its labels."""

import dataclasses
from typing import Any

import jax.numpy as jnp

from cqbjax.core.types import Problem, Source
from cqbjax.policies import Acqb, OptimalPolicy, QueueingBandit, RandomRouting, RouterPolicy
from tests import reference

EXPLORE_ROUNDS = 40
# Of `acqb_windowed`: it hops several times in a run.
WINDOW = 40
SCHEDULES = {"acqb_fifo": "oldest", "acqb_rr": "least_served", "acqb_random": "random"}
EXPLORE_RULES = {"fifo": "oldest", "lifo": "newest", "rr": "least_served", "random": "random"}
# Kinds of labels: policies of a kind keep the same state, so that one program runs them all.
SIMPLE = ("optimal", "random", "rand_rout", "rand_rout_fallback", *reference.ROUTED)
BANDITS = ("q_ucb", "q_ths")
WINDOWED = ("acqb_windowed",)
MIXED = ("acqb_mixed",)
OPTIMISTIC = tuple(
    label for label in reference.POLICIES if label not in (*SIMPLE, *BANDITS, *WINDOWED, *MIXED)
)
KINDS = (OPTIMISTIC, WINDOWED, MIXED, SIMPLE, BANDITS)
# Those whose estimator's settings are a test's own.
ACQB = (OPTIMISTIC, WINDOWED, MIXED)


@dataclasses.dataclass(frozen=True)
class Case:
    """One configuration of problem and floats, the same for both simulators."""

    source: Source
    assortment_size: int
    arrival_rate: float
    horizon: int
    seed: int = 0
    kappa: float = 1.3
    lambda0: float = 0.7
    alpha_scale: float = 0.4
    c1: float = 0.9
    precision: float = 1.6
    recall_by: str = "row"

    @property
    def problem(self) -> Problem:
        """The static shapes."""
        return self.source.problem(self.assortment_size, self.horizon)

    @property
    def exploit_size(self) -> int:
        """Of `acqb_mixed`: one server less than K."""
        return max(self.assortment_size - 1, 1)

    def settings(self) -> reference.Settings:
        """Return the reference's settings; it checks W W' V = I after every update."""
        return reference.Settings(
            K=self.assortment_size,
            parameters=self.problem.parameters,
            arrival_rate=self.arrival_rate,
            horizon=self.horizon,
            kappa=self.kappa,
            lambda0=self.lambda0,
            alpha_scale=self.alpha_scale,
            c1=self.c1,
            explore_rounds=EXPLORE_ROUNDS,
            window=WINDOW,
            exploit_size=self.exploit_size,
            precision=self.precision,
            recall_by=self.recall_by,
            check=True,
        )


def labels(case: Case) -> tuple[str, ...]:
    """Return the labels of every policy that is defined for a case."""
    some = BANDITS if case.assortment_size == 1 else MIXED
    return OPTIMISTIC + WINDOWED + SIMPLE + some


def policy(
    label: str, case: Case, scores: reference.Floats | None = None, **static_fields: Any
) -> Any:
    """Return the simulator's policy of a label with the case's floats.

    Args:
        label: one of `reference.POLICIES`.
        case: gives kappa, lambda0, alpha_scale and c1.
        scores: [I, N] what a router predicts; of no use to others.
        static_fields: of `Acqb`: estimator, exact_steps.
    """
    if label == "optimal":
        return OptimalPolicy()
    if label in ("random", "rand_rout"):
        return RandomRouting(schedule="random" if label == "random" else "oldest")
    if label == "rand_rout_fallback":
        return RandomRouting(schedule="oldest", retry="fallback")
    if label in reference.ROUTED:
        retry, schedule = reference.ROUTED[label]
        words: dict[str, Any] = {"retry": retry, "schedule": schedule, "recall_by": case.recall_by}
        return RouterPolicy(
            scores=jnp.asarray(scores), by="row", precision=case.precision, **words
        )  # fmt: skip
    if label in BANDITS:
        return QueueingBandit(index="ucb" if label == "q_ucb" else "thompson")
    variant: dict[str, Any] = {}
    if label == "cqb_eps":
        variant = {"exploration": "phased"}
    elif label == "acqb_ucb":
        variant = {"optimism": "ucb"}
    elif label in WINDOWED:
        variant = {"window": WINDOW}
    elif label in MIXED:
        variant = {"exploit_size": case.exploit_size}
    elif label in reference.RETRIES:
        variant = {"retry": reference.RETRIES[label]}
    elif label in SCHEDULES:
        variant = {"schedule": SCHEDULES[label]}
    elif label.startswith("acqb_explore_"):
        rule = EXPLORE_RULES[label.removeprefix("acqb_explore_")]
        variant = {"exploration": "independent", "explore_query": rule}
    return Acqb(
        kappa=case.kappa,
        lambda0=case.lambda0,
        alpha_scale=case.alpha_scale,
        c1=case.c1,
        explore_rounds=float(EXPLORE_ROUNDS),
        precision=case.precision,
        recall_by=case.recall_by,
        **variant,
        **static_fields,
    )
