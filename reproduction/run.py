"""Run a study as `cqbjax run` does; its table has the paper's numbers beside ours."""

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cqbjax.cli import run
from cqbjax.cli._command import run_configured

if TYPE_CHECKING:
    import xarray as xr

    from cqbjax.experiments.configs import Config
    from cqbjax.experiments.study_types import StudyOutput, StudyType


def show(kind: "StudyType", points: "Sequence[xr.Dataset]", config: "Config") -> "StudyOutput":
    """Return the tables and figures of a study, with the paper's numbers in its main table.

    They are added to sweeps that are studies of the report and that vary `ALWAYS_VARIED` alone, as
    the paper does, and to replays of the paper's log or of a generated one. User-defined study
    types are not extended: their tables may have any columns.
    """
    from cqbjax.core.labels import GENERATED, PAPER
    from cqbjax.experiments.log_replay import LogReplay
    from cqbjax.experiments.sweeps import Sweep
    from cqbjax.logs import prepare
    from cqbjax.results.summaries import ALWAYS_VARIED, find_differing
    from reproduction.paper import catalogue, printed
    from reproduction.studies import Slopes

    shown, datasets = kind.show(points, config), {}
    if type(kind) is LogReplay:
        of_paper = [one for one in points if one.attrs["provenance"] in (PAPER, GENERATED)]
        datasets = {str(one.attrs["source"]): prepare.TITLE for one in of_paper}
    elif (
        type(kind) in (Sweep, Slopes)
        and config.name in {one.name for one in catalogue.load_studies()}
        and {*find_differing(points)} <= {*ALWAYS_VARIED}
    ):
        datasets = printed.match_datasets(points)
    if not datasets:
        return shown
    main = shown.tables[""]
    main = main._replace(frame=printed.add_columns(main.frame, datasets))
    return shown._replace(tables={**shown.tables, "": main})


main = functools.partial(run_configured, functools.partial(run.run, show=show))
