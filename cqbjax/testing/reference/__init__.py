"""A plain NumPy float64 simulator of CQB-MNL and its online policies: the oracle of the tests.

Written from the paper's text alone and fed recorded draws, so that another simulator can be
compared with it decision for decision. Loops and enumeration: obvious, not fast.
"""

from cqbjax.testing.reference.estimator import Estimator, minimise
from cqbjax.testing.reference.policies import POLICIES, RETRIES, ROUTED
from cqbjax.testing.reference.records import Draws, Floats, Settings, Trajectory, World
from cqbjax.testing.reference.rounds import simulate
from cqbjax.testing.reference.switching import switching_lengths
from cqbjax.testing.reference.worlds import Played, Rules, simulate_world

__all__ = [
    "POLICIES",
    "RETRIES",
    "ROUTED",
    "Rules",
    "Draws",
    "Estimator",
    "Floats",
    "Played",
    "Settings",
    "Trajectory",
    "World",
    "minimise",
    "simulate",
    "simulate_world",
    "switching_lengths",
]
