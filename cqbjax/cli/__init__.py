"""The commands: `cqbjax NAME` where the package is installed, `scripts/NAME.py` in a checkout.

Each module imports what it works with where it works: showing a configuration, refusing a word or
listing the commands then takes a fraction of a second, and not the seconds of JAX and its friends.
"""

import time


class Watch:
    """What a command's studies took: the first from the command's start, but for Python's own."""

    def __init__(self) -> None:
        self._begun = time.perf_counter()

    def running(self) -> float:
        """Return the seconds since the start, or since the last study ended."""
        return time.perf_counter() - self._begun

    def stop(self) -> float:
        """Return them at the end of a study, and begin anew."""
        seconds = self.running()
        self._begun += seconds
        return seconds


WATCH = Watch()
