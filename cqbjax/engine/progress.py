"""To whom a sweep tells of its progress: an interface, nobody, and several sweeps told as one."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Literal, Protocol

Activity = Literal["compiling", "running"]


class Reporter(Protocol):
    """What a sweep tells of its progress.

    Attributes:
        simulated: seconds of simulation so far, compiling apart; who simulates adds to it.
    """

    simulated: float

    def expect(self, rounds: int) -> None:
        """Add round-runs to the total."""

    def doing(self, activity: Activity, label: str) -> None:
        """Say what is going on, and for which policy (the first of its group)."""

    def advance(self, rounds: int) -> None:
        """Count round-runs as done."""

    def note(self, line: str) -> None:
        """Print a line that stays."""

    def steps(self, what: str, total: int) -> AbstractContextManager[Callable[[int], None]]:
        """Show a bar of its own for other work; the function counts steps as done."""


class Silent:
    """Report nothing."""

    simulated = 0.0

    def expect(self, rounds: int) -> None:
        """Ignore."""

    def doing(self, activity: Activity, label: str) -> None:
        """Ignore."""

    def advance(self, rounds: int) -> None:
        """Ignore."""

    def note(self, line: str) -> None:
        """Ignore."""

    @contextmanager
    def steps(self, what: str, total: int) -> Iterator[Callable[[int], None]]:
        """Ignore."""
        yield lambda count: None


class Prepaid:
    """Tells of several sweeps as one, whose rounds are expected from the start."""

    def __init__(self, reporter: Reporter, rounds: int) -> None:
        self._reporter, self._ahead = reporter, rounds
        reporter.expect(rounds)

    @property
    def simulated(self) -> float:
        """Pass it on."""
        return self._reporter.simulated

    @simulated.setter
    def simulated(self, seconds: float) -> None:
        self._reporter.simulated = seconds

    def expect(self, rounds: int) -> None:
        """Add what is more than was expected already."""
        known = min(max(rounds, 0), self._ahead)
        self._ahead -= known
        if rounds != known:
            self._reporter.expect(rounds - known)

    def doing(self, activity: Activity, label: str) -> None:
        """Pass it on."""
        self._reporter.doing(activity, label)

    def advance(self, rounds: int) -> None:
        """Pass it on."""
        self._reporter.advance(rounds)

    def note(self, line: str) -> None:
        """Pass it on."""
        self._reporter.note(line)

    def steps(self, what: str, total: int) -> AbstractContextManager[Callable[[int], None]]:
        """Pass it on."""
        return self._reporter.steps(what, total)

    def close(self) -> None:
        """Expect no more of what did not have to be run, such as runs that points share."""
        self._reporter.expect(-self._ahead)
        self._ahead = 0
