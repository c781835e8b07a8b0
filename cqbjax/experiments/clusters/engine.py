"""What a cluster is to a sweep: something that calls a function on tasks, elsewhere."""

import importlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol


class TaskResult(NamedTuple):
    """A task that came to its end.

    Attributes:
        number: of the task.
        value: what the function returned; None where it failed.
        reason: why it failed, in one line; empty where it did not.
    """

    number: int
    value: Any
    reason: str


class Cluster(Protocol):
    """Runs tasks that do not depend on one another, and may be run again."""

    def run(self, function: Callable[[Any], Any], tasks: Sequence[Any]) -> Iterator[TaskResult]:
        """Call a function on each task, and yield each as it ends, in any order.

        A task whose process died is run again where the engine does that; one that raised is not.

        Args:
            function: of a module that every machine has.
            tasks: what can be pickled.

        Raises:
            ValueError: the engine is not installed, or cannot be reached.
        """
        ...


def import_engine(name: str, extra: str) -> Any:
    """Import an engine.

    Args:
        name: of its module.
        extra: of this package, which installs it.

    Raises:
        ValueError: it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ValueError(
            f"cluster={extra} needs {name}, which is not installed: pip install 'cqbjax[{extra}]'"
        ) from error


def describe_error(error: BaseException, line: int = 0) -> str:
    """Return why a task failed, in one line.

    Args:
        error: what an engine raised.
        line: of its text: the first, or -1 where a traceback stands before the reason.
    """
    lines = [text.strip() for text in str(error).splitlines() if text.strip()]
    return lines[line] if lines else repr(error)
