"""Where success depends on the query alone, no policy changes the work that waits."""

import numpy as np
import pytest
from stationary import WaitingByRow, close, mean_per_round, sweep_stationary

from cqbjax.policies import (
    Acqb,
    ContextWrapper,
    Intercept,
    QueueingBandit,
    RandomRouting,
    ReplacedContexts,
    RouterPolicy,
    _template,
)
from tests.reference import known_queues, queues

pytestmark = pytest.mark.slow

LOAD = 0.5
SCORES = np.array([[0.3, -0.2], [-0.1, 0.4]])
WARM = Acqb(estimator="newton_cg", offset=SCORES)
# Every label of conf/policy, and every word of every policy; what is trained has made-up scores.
POLICIES = {
    "acqb": Acqb(),
    **{f"acqb_{rule}": Acqb(schedule=rule) for rule in ("oldest", "least_served", "random")},
    **{
        f"acqb_explore_{rule}": Acqb(exploration="independent", explore_query=rule)
        for rule in ("oldest", "newest", "random", "least_served")
    },
    "cqb_eps": Acqb(exploration="phased", explore_rounds=100),
    **{f"acqb_{retry}": Acqb(retry=retry) for retry in ("fallback", "posterior", "recall")},
    "acqb_ucb": Acqb(optimism="ucb"),
    "acqb_cl": ContextWrapper(policy=Acqb(), view=ReplacedContexts(contexts=np.eye(2, 3) + 0.1)),
    "acqb_intercept": ContextWrapper(policy=Acqb(), view=Intercept()),
    "acqb_warm": ContextWrapper(policy=WARM, view=ReplacedContexts(contexts=np.eye(2, 3))),
    **{
        f"routed_{retry}": RouterPolicy(scores=SCORES, retry=retry)
        for retry in ("same", "fallback", "posterior", "recall")
    },
    "routed_priority": RouterPolicy(scores=SCORES, schedule="joint"),
    "q_ucb": QueueingBandit(),
    "q_ths": QueueingBandit(index="thompson"),
    **{f"random_{rule}": RandomRouting(schedule=rule) for rule in ("oldest", "newest", "random")},
    "random_fallback": RandomRouting(retry="fallback"),
    "template": _template.EpsilonGreedy(),
}


# Five million rounds: in plain machine code they take longer than compiling well.
@pytest.mark.usefixtures("as_in_a_study")
def test_work_is_conserved_under_every_policy():
    """sum_i EQ_i / m_i is the same for every policy that never idles."""
    rate = LOAD / known_queues.MIXED[0]
    data = sweep_stationary(
        POLICIES,
        known_queues.TWO,
        rate,
        seeds=32,
        horizon=2000,
        burn_in=100,
        record=[WaitingByRow()],
    )
    work = (mean_per_round(data.waiting) / known_queues.CLASSES).sum("row")
    assert len(work.policy) == len(POLICIES) + 1
    for label in work.policy.values:
        close(work.sel(policy=label).values, queues.conserved(known_queues.CLASSES, rate))
    # The same work in other queues: the test would see a policy that idles, not one order.
    assert len(set(data.queue_length.mean(("seed", "round")).values.round(3))) > 5
