"""How a command refuses: one sentence on the error stream, and status 2."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator

# The status of a command that ended with a part of its work left out: a point, a study, a page.
SOME_LEFT_OUT = 3


def first_line(error: Exception) -> str:
    """Return an error's first line; our own errors have no second."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), repr(error))


@contextlib.contextmanager
def refusing(
    *others: type[Exception], sentence: Callable[[Exception], str] = first_line
) -> Iterator[None]:
    """Turn wrong input into a sentence: a ValueError, an OSError or one of the others.

    CQBJAX_TRACEBACK=1 in the environment lets the error through, for whoever looks for its origin.

    Args:
        others: more classes that say what was wrong with the input.
        sentence: says an error in one line.

    Raises:
        SystemExit: of status 2, after the sentence.
    """
    kinds: tuple[type[Exception], ...] = (ValueError, OSError, *others)
    try:
        yield
    except kinds as error:
        if os.environ.get("CQBJAX_TRACEBACK"):
            raise
        print(f"error: {sentence(error)}", file=sys.stderr)
        raise SystemExit(2) from None
