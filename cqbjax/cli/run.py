"""Run one study, or a sweep of them: arrays, manifest, figures and tables under `results_dir`.

python scripts/run.py experiment=synthetic
python scripts/run.py -m experiment=synthetic alpha_scale=0.1,0.3,1 arrival_rate=0.6,0.7

With `-m` all combinations run as few batches, one for each program. Without `-m`, a list spans the
same grid, for any key that is not itself a list: `alpha_scale=[0.1,0.3]`.
"""

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cqbjax.cli._command import SOME_LEFT_OUT, run_configured
from cqbjax.cli._compose import check_words
from cqbjax.cli._instantiate import make
from cqbjax.experiments.grid import Job, compose_studies

if TYPE_CHECKING:
    from cqbjax.experiments.display import Show


def run(jobs: Sequence[Job], show: "Show | None" = None) -> list[Any]:
    """Run the jobs, those of each name as one study.

    Args:
        jobs: the only job, all of a multirun, or those that a search tries next.
        show: returns the tables and figures of a study, in place of the method of its type.

    Returns:
        For a search, each job's objective, or the error if it cannot run; else None for each.

    Raises:
        ValueError: a wrong key or value.
        SystemExit: of status `SOME_LEFT_OUT`, at the end, if some could not run and there is no
            search.
    """
    studies = compose_studies(jobs, check_words)
    from cqbjax.experiments.loop import run_study

    values = dict[int, Any]()
    for study in studies:
        objectives = run_study(study, make, show)
        values |= zip(map(id, study.jobs), objectives, strict=True)
    if any(study.skipped for study in studies) and not any(job.searched for job in jobs):
        raise SystemExit(SOME_LEFT_OUT)
    return [values[id(job)] for job in jobs]


main = functools.partial(run_configured, run)
