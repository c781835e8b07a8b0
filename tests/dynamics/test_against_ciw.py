"""Scenarios with known answers against ciw, a simulator in continuous time.

No limit is taken. Arrivals and attempts take whole rounds there too: arrivals are geometric many
rounds apart, which is one a round by chance, and a query is served for a geometric number of
rounds. Served first in first out, a query leaves in the same round in both, whichever of two events
of an instant ciw takes first. Patience ends half a round early there, so that it never meets the
end of an attempt; who leaves then leaves at the end of the round here.
"""

import ciw
import numpy as np
import pytest
from stationary import MOST_ERRORS, close, mean_queue

from benchmarks import peers
from tests.reference import known_queues

pytestmark = pytest.mark.slow

LOAD, SEEDS, HORIZON = 0.8, 48, 6000
BURN_IN, RUN_OUT = 400, 400
SCENARIOS = {
    "one success rate": {"m": known_queues.M, "channels": 1},
    "three served a round": {"m": known_queues.CHANNELS_M, "channels": known_queues.CHANNELS},
    "three served, leaving unserved": {
        "m": known_queues.CHANNELS_M, "channels": known_queues.CHANNELS,
        "leave": known_queues.LEAVE,
    },
}  # fmt: skip


class Patience(ciw.dists.Geometric):
    """A geometric number of rounds, less a half."""

    def sample(self, t=None, ind=None):
        return super().sample(t, ind) - 0.5


def simulate_by_ciw(seed, rate, m, channels, leave=None):
    """Return the mean number of queries in the system over the rounds that count."""
    patience = {} if leave is None else {"reneging_time_distributions": [Patience(leave)]}
    # Records are of those who left: all who came before the last round that counts.
    records = peers.ciw_records(
        seed, rate, m, HORIZON + RUN_OUT, number_of_servers=[channels], **patience
    )
    assert (leave is not None) == any(one.record_type == "renege" for one in records)
    return mean_queue(records, BURN_IN, HORIZON)


@pytest.mark.parametrize("name", SCENARIOS)
def test_mean_queue_agrees_with_ciw(name):
    (known,) = (one for one in known_queues.KNOWN if one.name == name)
    theirs = [simulate_by_ciw(seed, known.rate(LOAD), **SCENARIOS[name]) for seed in range(SEEDS)]
    ours = known_queues.simulated([known], LOAD, seeds=100, relaxations=100)[name]
    for each in (ours, theirs):
        close(each, known.expected(known.rate(LOAD)))
    errors = [np.std(each, ddof=1) / np.sqrt(len(each)) for each in (ours, theirs)]
    assert abs(ours.mean() - np.mean(theirs)) <= MOST_ERRORS * np.hypot(*errors)
