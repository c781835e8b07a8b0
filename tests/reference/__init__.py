"""A plain NumPy float64 simulator of CQB-MNL and its online policies: the oracle of the tests.

Written from the paper's text alone and fed recorded draws, so that another simulator can be
compared with it decision for decision. Loops and enumeration: obvious, not fast.
"""

from tests.reference.dynamics import PlayedRun, Rules, simulate_scenario
from tests.reference.estimator import Estimator, minimise
from tests.reference.policies import POLICIES, RETRIES, ROUTED
from tests.reference.records import Draws, Floats, Settings, Trajectory, Workload
from tests.reference.rounds import simulate
from tests.reference.switching import switching_lengths

__all__ = [
    "POLICIES",
    "RETRIES",
    "ROUTED",
    "Rules",
    "Draws",
    "Estimator",
    "Floats",
    "PlayedRun",
    "Settings",
    "Trajectory",
    "Workload",
    "minimise",
    "simulate",
    "simulate_scenario",
    "switching_lengths",
]
