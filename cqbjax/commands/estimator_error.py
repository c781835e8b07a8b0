"""Measure how far the estimates are from the exact minimiser: `run kind=estimator_error`.

    python scripts/estimator_error.py data_dir=PATH

Writes `tables/estimator_error`. Cases of prompts are those whose data lie under `data_dir`.
"""

import functools

from cqbjax.commands import run

main = functools.partial(run.main, "kind=estimator_error", "name=estimator_error")
