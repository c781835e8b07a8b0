"""The commands: `cqbjax NAME` where the package is installed, `scripts/NAME.py` in a checkout.

Each module imports heavy packages where it uses them, so that showing a configuration, reporting a
wrong word or listing the commands takes a fraction of a second, and not the seconds of JAX.
"""

import time

_laps = [time.perf_counter()]


def lap() -> float:
    """Return the seconds since the last call, or since the command began."""
    _laps.append(time.perf_counter())
    return _laps[-1] - _laps.pop(0)
