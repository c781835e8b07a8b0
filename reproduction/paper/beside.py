"""Tables of studies with the paper's numbers beside ours."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl
    import xarray as xr

    from cqbjax.experiments.configs import Config
    from cqbjax.experiments.kinds import Kind, Shown


def show(kind: "Kind", points: "Sequence[xr.Dataset]", config: "Config") -> "Shown":
    """Return what a study shows, with the paper's numbers in its main table where it has any.

    Only kinds of this project are extended: a user's own may have any columns.
    """
    from cqbjax.experiments.replaying import Replay
    from cqbjax.experiments.sweeps import Sweep
    from reproduction.studies.slopes import Slopes

    shown = kind.show(points, config)
    if type(kind) not in (Sweep, Slopes, Replay):
        return shown
    extended = of_replay if type(kind) is Replay else of_sweep
    main = shown.tables[""]
    main = main._replace(frame=extended(main.frame, points, config))
    return shown._replace(tables={**shown.tables, "": main})


def of_sweep(
    frame: "pl.DataFrame", points: "Sequence[xr.Dataset]", config: "Config"
) -> "pl.DataFrame":
    """Return the table of a sweep, extended if the sweep is a study of the report.

    A study of one's own has its own policies and machine, and the paper varies `ALWAYS_VARIED`
    alone: its numbers are of no other point of a sweep.
    """
    from cqbjax.results.summaries import ALWAYS_VARIED, differing
    from reproduction.paper import catalogue, printed

    reported = config.name in {one.name for one in catalogue.studies()}
    if not reported or not {*differing(points)} <= {*ALWAYS_VARIED}:
        return frame
    return printed.beside(frame, printed.answered(points))


def of_replay(
    frame: "pl.DataFrame", points: "Sequence[xr.Dataset]", config: "Config"
) -> "pl.DataFrame":
    """Return the table of a replay, extended where the log is the paper's or generated in place."""
    from cqbjax.core.labels import GENERATED, PAPERS
    from cqbjax.logs import prepare
    from reproduction.paper import printed

    del config
    of_paper = [one for one in points if one.attrs["provenance"] in (PAPERS, GENERATED)]
    return printed.beside(frame, {str(one.attrs["source"]): prepare.TITLE for one in of_paper})
