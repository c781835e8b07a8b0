"""The progress bar of what reads, downloads or embeds."""

import contextlib
from collections.abc import Callable, Iterator

import rich.progress


@contextlib.contextmanager
def steps(shown: bool, what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Draw a bar of `total` steps; the function that it gives counts some as done."""
    columns = (*rich.progress.Progress.get_default_columns(), rich.progress.MofNCompleteColumn())
    with rich.progress.Progress(*columns, disable=not shown) as bar:
        task = bar.add_task(what, total=total)
        yield lambda count: bar.advance(task, count)
