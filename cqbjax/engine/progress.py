"""Progress of sweeps: rounds done, rounds per second and time left, as a bar or as log lines."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

Activity = Literal["compiling", "running"]

MINUTE = 60.0


class Reporter:
    """Counts the progress of sweeps and shows nothing; subclasses override `refresh`.

    Rounds are counted in every run: 100 rounds of 20 runs are 2,000.

    Attributes:
        verbose: whether details are printed: memory, compiling and speed of each batch.
        total: rounds to simulate.
        done: simulated rounds.
        reserved: rounds that `reserve` has added to `total` in advance. `expect` does not add them
            a second time.
        activity: what is going on, and for which policy.
        run_seconds: seconds of simulation so far, without compiling.
        console: where lines are printed; None prints nothing.
    """

    verbose = False
    total = 0
    done = 0
    reserved = 0
    activity = "starting"
    run_seconds = 0.0
    console: "Console | None" = None

    def reserve(self, rounds: int) -> None:
        """Add the rounds of several sweeps to the total, before the first of them begins."""
        self.total += rounds
        self.reserved += rounds
        self.refresh()

    def release(self) -> None:
        """Subtract reserved rounds that were not needed, such as those that two points share."""
        rounds, self.reserved = self.reserved, 0
        self.expect(-rounds)

    def expect(self, rounds: int) -> None:
        """Add rounds to the total, unless they were reserved; a negative number subtracts."""
        known = min(max(rounds, 0), self.reserved)
        self.reserved -= known
        self.total += rounds - known
        self.refresh()

    def set_activity(self, activity: Activity, label: str) -> None:
        """Set what is going on, and for which policy (the first of its batch)."""
        self.activity = f"{activity} {label}"
        self.refresh()

    def advance(self, rounds: int) -> None:
        """Count rounds as done."""
        self.done += rounds
        self.refresh()

    def refresh(self) -> None:
        """Show the new state."""

    def log(self, line: str) -> None:
        """Print a line of details if `verbose` is true."""
        if self.verbose:
            self.print(line)

    def print(self, line: str) -> None:
        """Print a line that stays, above a bar."""
        if self.console is not None:
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    @contextmanager
    def track_steps(self, name: str, total: int) -> Iterator[Callable[[int], None]]:
        """Track other work, such as fits; the yielded function counts steps as done."""
        done = 0

        def count(steps: int) -> None:
            nonlocal done
            done += steps
            self.activity = f"{name} {done} of {total}"
            self.refresh()

        yield count


class BarReporter(Reporter):
    """Shows a progress bar of rich."""

    def __init__(self, progress: "Progress") -> None:
        """Add a task to `progress`, whose columns show the field `rate`."""
        self.console, self._progress = progress.console, progress
        self._task = progress.add_task(self.activity, total=0, rate="")

    def refresh(self) -> None:
        """Move the bar."""
        speed = self._progress.tasks[0].speed
        self._progress.update(
            self._task, total=self.total, completed=self.done, description=self.activity,
            rate=f"{speed:,.0f} rounds/s" if speed else "",
        )  # fmt: skip

    @contextmanager
    def track_steps(self, name: str, total: int) -> Iterator[Callable[[int], None]]:
        """Show a second bar."""
        task = self._progress.add_task(name, total=total, rate="")
        try:
            yield lambda steps: self._progress.advance(task, steps)
        finally:
            self._progress.remove_task(task)


class LogReporter(Reporter):
    """Prints a line per minute, for output that is not a terminal."""

    def __init__(self, console: "Console", clock: Callable[[], float] = time.monotonic) -> None:
        """Print to `console`; `clock` returns seconds."""
        self.console, self._clock = console, clock
        self._begun = self._shown = clock()

    def refresh(self) -> None:
        """Print the state, if a minute has passed since the last line."""
        now = self._clock()
        if now - self._shown < MINUTE:
            return
        self._shown, speed = now, self.done / (now - self._begun)
        if not self.total:
            # No sweep has begun yet: its time is still being estimated, or routers are fitted.
            self.print(self.activity)
            return
        line = f"{self.done:,} of {self.total:,} rounds, {speed:,.0f} a second, {self.activity}"
        if speed > 0:
            line += f", about {(self.total - self.done) / speed / MINUTE:.0f} min left"
        self.print(line)


@contextmanager
def show_progress(console: "Console | None" = None, verbose: bool = False) -> Iterator[Reporter]:
    """Yield a reporter that shows a bar on a terminal, and prints a line per minute elsewhere.

    Args:
        console: where it is shown; None is the error stream.
        verbose: whether details are printed, too.
    """
    # rich takes long to import, and a sweep without a bar does not need it.
    from rich import progress
    from rich.console import Console

    console = console or Console(stderr=True)
    if not console.is_terminal:
        reporter: Reporter = LogReporter(console)
        reporter.verbose = verbose
        yield reporter
        return
    columns = (
        progress.TextColumn("{task.description}", markup=False), progress.BarColumn(),
        progress.MofNCompleteColumn(), progress.TextColumn("{task.fields[rate]}", style="green"),
        progress.TimeRemainingColumn(),
    )  # fmt: skip
    with progress.Progress(*columns, console=console, transient=True) as bar:
        reporter = BarReporter(bar)
        reporter.verbose = verbose
        yield reporter
