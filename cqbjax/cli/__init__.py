"""The commands: `cqbjax NAME` if the package is installed, `scripts/NAME.py` in a checkout.

Each module imports heavy packages where it uses them, so that showing a configuration, reporting a
wrong word or listing the commands takes a fraction of a second, and not the seconds of JAX.
"""

import contextlib
import os
import sys
from collections.abc import Iterator

# The status of a command whose output is no longer read, as in a shell.
BROKEN_PIPE = 141


@contextlib.contextmanager
def end_quietly() -> Iterator[None]:
    """End without a traceback if the output is no longer read, as after `| head`.

    Raises:
        SystemExit: of status `BROKEN_PIPE`.
    """
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # Python would report the same error again when it flushes the output at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(BROKEN_PIPE) from None
