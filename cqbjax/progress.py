"""The progress bar of a sweep: rounds done, rounds a second, time left."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

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


class Reporter(Protocol):
    """What a sweep tells of its progress."""

    def expect(self, rounds: int) -> None:
        """Add round-runs to the total."""

    def doing(self, what: str) -> None:
        """Say what is going on."""

    def advance(self, rounds: int) -> None:
        """Count round-runs as done."""


class Silent:
    """Report nothing."""

    def expect(self, rounds: int) -> None:
        """Ignore."""

    def doing(self, what: str) -> None:
        """Ignore."""

    def advance(self, rounds: int) -> None:
        """Ignore."""


class _RateColumn(ProgressColumn):
    """Rounds a second over the last moments."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{speed:,.0f} rounds/s" if speed else "- rounds/s", style="green")


class Bar:
    """A rich progress bar."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._task = bar.add_task("starting", total=0)
        self._total = 0

    def expect(self, rounds: int) -> None:
        """Add round-runs to the total."""
        self._total += rounds
        self._bar.update(self._task, total=self._total)

    def doing(self, what: str) -> None:
        """Show what is going on beside the bar."""
        self._bar.update(self._task, description=what)

    def advance(self, rounds: int) -> None:
        """Move the bar."""
        self._bar.advance(self._task, rounds)


@contextmanager
def bar(console: Console | None = None) -> Iterator[Reporter]:
    """Show a progress bar on a terminal; write one line at the end elsewhere."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        _RateColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console or Console(stderr=True)) as shown:
        yield Bar(shown)
