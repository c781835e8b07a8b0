"""Run one study, or a sweep of them: arrays, manifest, figures and tables under `results_dir`.

python scripts/run.py experiment=synthetic
python scripts/run.py -m experiment=synthetic alpha_scale=0.1,0.3,1 arrival_rate=0.6,0.7

With `-m` all combinations run as few batches, one for each program. Without `-m`, a list spans the
same grid, for any key that is not itself a list: `alpha_scale=[0.1,0.3]`.
"""

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cqbjax.cli._command import SOME_LEFT_OUT, run_configured
from cqbjax.cli._compose import check_words
from cqbjax.cli._instantiate import make
from cqbjax.experiments.grid import Job, compose_studies

if TYPE_CHECKING:
    from cqbjax.experiments.display import Show


def run(jobs: Sequence[Job], show: "Show | None" = None) -> None:
    """Run the jobs, those of each name as one study.

    Args:
        jobs: the only job, or all of a multirun.
        show: returns the tables and figures of a study, in place of the method of its type.

    Raises:
        ValueError: a wrong key or value.
        SystemExit: of status `SOME_LEFT_OUT`, at the end, if some could not run.
    """
    studies = compose_studies(jobs, check_words)
    from cqbjax.experiments.loop import run_study

    for study in studies:
        run_study(study, make, show)
    if any(study.skipped for study in studies):
        raise SystemExit(SOME_LEFT_OUT)


main = functools.partial(run_configured, run)
