"""The progress of a sweep on a terminal: rounds done, rounds a second, time left."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from cqbjax.engine.progress import Activity, Reporter

MINUTE = 60.0


class _RateColumn(ProgressColumn):
    """Rounds (or fits) a second over the last moments."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        unit = task.fields["unit"]
        digits = 0 if unit == "rounds" else 2
        return Text(f"{speed:,.{digits}f} {unit}/s" if speed else f"- {unit}/s", style="green")


class Bar:
    """A rich progress bar."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._task = bar.add_task("starting", total=0, unit="rounds")
        self._total, self.simulated = 0, 0.0

    def expect(self, rounds: int) -> None:
        """Add round-runs to the total."""
        self._total += rounds
        self._bar.update(self._task, total=self._total)

    def doing(self, activity: Activity, label: str) -> None:
        """Show what is going on beside the bar."""
        self._bar.update(self._task, description=f"{activity} {label}")

    def advance(self, rounds: int) -> None:
        """Move the bar."""
        self._bar.advance(self._task, rounds)

    def note(self, line: str) -> None:
        """Print a line above the bar."""
        self._bar.console.print(line, markup=False, highlight=False, soft_wrap=True)

    @contextmanager
    def steps(self, what: str, total: int) -> Iterator[Callable[[int], None]]:
        """Show a second bar."""
        task = self._bar.add_task(what, total=total, unit="fits")
        try:
            yield lambda count: self._bar.advance(task, count)
        finally:
            self._bar.remove_task(task)


class Lines:
    """A line a minute, for a log that nobody draws a bar in."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._clock = console, clock
        self._begun = self._told = clock()
        self._total, self._done, self._what = 0, 0, "starting"
        self.simulated = 0.0

    def expect(self, rounds: int) -> None:
        """Add round-runs to the total."""
        self._total += rounds

    def doing(self, activity: Activity, label: str) -> None:
        """Remember what is going on."""
        self._what = f"{activity} {label}"
        self._tell()

    def advance(self, rounds: int) -> None:
        """Count round-runs as done."""
        self._done += rounds
        self._tell()

    def note(self, line: str) -> None:
        """Print a line."""
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    @contextmanager
    def steps(self, what: str, total: int) -> Iterator[Callable[[int], None]]:
        """Count other work."""
        done = 0

        def count(more: int) -> None:
            nonlocal done
            done += more
            self._what = f"{what} {done} of {total}"
            self._tell()

        yield count

    def _tell(self) -> None:
        """Say where the sweep stands, if a minute has passed since it was said."""
        now = self._clock()
        if now - self._told < MINUTE:
            return
        self._told, speed = now, self._done / (now - self._begun)
        if not self._total:
            # Nothing is simulated yet: how long it will take is being measured.
            self.note(self._what)
            return
        line = f"{self._done:,} of {self._total:,} rounds, {speed:,.0f} a second, {self._what}"
        if speed > 0:
            line += f", about {(self._total - self._done) / speed / MINUTE:.0f} min left"
        self.note(line)


@contextmanager
def bar(console: Console | None = None) -> Iterator[Reporter]:
    """Show a progress bar on a terminal; elsewhere write a line a minute."""
    console = console or Console(stderr=True)
    if not console.is_terminal:
        yield Lines(console)
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        _RateColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as shown:
        yield Bar(shown)
