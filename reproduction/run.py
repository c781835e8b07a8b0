"""Run a study as `cqbjax run` does; its table has the paper's numbers beside ours."""

import functools

from cqbjax.cli import run
from cqbjax.cli._start import start
from reproduction.paper import beside

main = functools.partial(start, functools.partial(run.run, show=beside.show))
