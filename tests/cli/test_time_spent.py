"""What a command says of its time: each study's own share, and whose simulation it was."""

import time

from cqbjax.cli import lap
from cqbjax.experiments.display import describe_time


def test_a_study_is_timed_from_the_end_of_the_one_before():
    lap()
    time.sleep(0.02)
    first = lap()
    assert first >= 0.02
    assert lap() < first


def test_the_share_is_of_what_this_process_simulated():
    assert describe_time(1.0, 4.0) == "simulation 1.0 s of 4.0 s (25%)"
    assert describe_time(None, 3.04) == "3.0 s, simulation in other processes"
