"""The output of a study: figures, tables, and where the time went."""

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import xarray as xr
from rich.console import Console

from cqbjax.engine.runner import Estimate
from cqbjax.experiments import validation
from cqbjax.experiments.configs import Config
from cqbjax.experiments.study_types import OutputTable, StudyOutput, StudyType

# Returns the output of a study: a caller of `run` or `report` may extend that of its type.
Show = Callable[[StudyType, Sequence[xr.Dataset], Config], StudyOutput]

# A figure with more pairs of panels would be illegible: it shows only the last rounds.
MOST_PANELS = 9
# Columns of an output that is not a terminal.
FILE_WIDTH = 150


def make_console() -> Console:
    """Return a console that is as wide as the terminal, or as COLUMNS; wider for a file."""
    return Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else FILE_WIDTH)


def print_lines(console: Console, lines: Iterable[str]) -> None:
    """Print lines as they are: not folded, and without markup."""
    for line in lines:
        console.print(line, markup=False, soft_wrap=True)


def write_output(
    shown: StudyOutput, config: Config, stem: str, console: Console | None = None
) -> list[Path]:
    """Write the output of a study, then print its tables and lines.

    Args:
        shown: from `StudyType.show`.
        config: configuration of the study; `results_dir` and `figure` are read.
        stem: file name without ending, below `figures/` and `tables/` of `results_dir`.
        console: where tables are printed.

    Returns:
        The files written.
    """
    from cqbjax.figures import save_figure, save_paper_figure
    from cqbjax.results import tables
    from cqbjax.results.frame import drop_point_intervals

    written: list[Path] = []
    folders = [Path(config.results_dir) / name for name in ("tables", "figures")]
    frames = {name: drop_point_intervals(table.frame) for name, table in shown.tables.items()}
    for name, table in shown.tables.items():
        path, frame = folders[0] / "_".join(filter(None, (stem, name))), frames[name]
        if table.caption:
            written += tables.save_table(frame, path, table.caption, table.recorded)
        else:
            written.append(path.with_name(f"{path.name}.csv"))
            tables.write_csv(written[-1], frame)
    for name, figure in shown.figures.items():
        path = folders[1] / "_".join(filter(None, (stem, name)))
        paper = config.get("figure") == "paper"
        written += [save_paper_figure(figure, path)] if paper else save_figure(figure, path)
    # Nothing is lost if the output is no longer read.
    for name, table in shown.tables.items():
        if table.printed:
            tables.print_table(frames[name], table.caption, console, table.recorded)
    for line in shown.lines:
        (console or Console()).print(line, markup=False)
    return written


def name_seeds(output: StudyOutput, seeds: str) -> StudyOutput:
    """Return the output with the number of seeds in the captions of its tables."""
    tables = {
        name: table._replace(caption=table.caption and f"{table.caption}: {seeds}")
        for name, table in output.tables.items()
    }
    return output._replace(tables=tables)


def describe_files(paths: Sequence[Path]) -> str:
    """Return paths in one text, those that differ in their endings as `figures/first.{pdf,png}`."""
    endings: dict[str, list[str]] = {}
    for path in paths:
        endings.setdefault(str(path.with_suffix("")), []).append(path.suffix.removeprefix("."))
    return ", ".join(
        f"{stem}.{some[0]}" if len(some) == 1 else f"{stem}.{{{','.join(some)}}}"
        for stem, some in endings.items()
    )


def show_sweep(points: Sequence[xr.Dataset], config: Config) -> StudyOutput:
    """Return the figure and the table of an ordinary study.

    Args:
        points: from `results.load_points`.
        config: configuration of the study; `title, figure_policies, spread, queue, table,
            table_rounds` are read.
    """
    # Imported here, so that the first round does not wait for Matplotlib and Polars.
    from cqbjax.figures import draw_curves, draw_over_keys, users
    from cqbjax.results.metrics import find_recorded, list_panels

    drawn = [_select_policies(point, config.figure_policies) for point in points]
    fits_panels = sum(point.sizes["arrival_rate"] for point in points) <= MOST_PANELS
    if fits_panels:
        panels = [name for name in list_panels(drawn, config) if name not in users.ELSEWHERE]
        figure = draw_curves(drawn, panels, config.spread, config.get("scale", "linear"))
    else:
        figure = draw_over_keys(drawn)
    main = OutputTable(
        build_table(points, config), config.title or config.name, recorded=find_recorded(points)
    )
    others = dict(users.draw_user_figures(drawn, fits_panels, config.spread))
    return StudyOutput({"": main}, {"": figure, **others})


def build_table(points: Sequence[xr.Dataset], config: Config) -> Any:
    """Return the table of a study."""
    from cqbjax.results import tables

    horizons = {int(point.attrs["horizon"]) for point in points}
    # With several horizons, `table_rounds` holds the rounds of the first one.
    end = {max(horizons)} if len(horizons) > 1 else set()
    rounds = sorted({min(int(t), max(horizons)) for t in config.table_rounds} | end)
    if config.table == "throughput":
        return tables.throughput_table(points, rounds, config.get("compared") or "acqb")
    return tables.gap_table(points, rounds, config.get("compared"), config.table)


def _select_policies(point: xr.Dataset, labels: list[str] | None) -> xr.Dataset:
    """Select the policies to draw, or all if none of them is in the point."""
    if labels is None:
        return point
    drawn = [label for label in point.policy.values if label in labels]
    return point.sel(policy=drawn) if drawn else point


def compute_objective(points: Sequence[xr.Dataset], config: Config) -> float:
    """Return the objective of a search: a mean over seeds, rates and points.

    Args:
        points: points of one job.
        config: configuration of the job; `objective` names metric and policy.
    """
    from cqbjax.results.aggregate import aggregate_points

    asked = config.objective
    table = aggregate_points(points, [asked.metric])
    return float(table.filter(policy=asked.policy)["mean"].mean())  # type: ignore[arg-type]


def list_table_rounds(config: Config) -> list[int]:
    """Return the rounds that the table of a study may show, and its last ones."""
    horizons = validation.to_list(config.horizon)
    # With several horizons the default rounds are not resolved yet.
    rounds = [t for t in config.table_rounds if isinstance(t, int)]
    return [*rounds, *(half for one in horizons for half in (one // 2, one))]


def print_estimates(
    ready: int, left: int, estimates: Sequence[Estimate], prepared: float, recorded: int,
    console: Console,
) -> None:  # fmt: skip
    """Print what a sweep would run, and its estimated time.

    Args:
        ready: number of points.
        left: number of points that are not stored yet.
        estimates: estimates for the points that are not stored.
        prepared: seconds of composing and validating.
        recorded: bytes of the arrays that are in memory together until they are stored.
        console: where it is printed.
    """
    lines = [
        f"{one.description}: compiling {one.compiling:.1f} s, running {one.running:.1f} s"
        for one in estimates
    ]
    compiling = sum(one.compiling for one in estimates)
    running = sum(one.running for one in estimates)
    total = (
        f"{ready} points, {ready - left} of them stored; {len(estimates)} groups, a program each; "
        f"about {prepared + compiling + running:.0f} s: composing and checking {prepared:.0f}, "
        f"compiling {compiling:.0f} (done now, and cached), running {running:.0f}; fits of routers "
        f"and heads, storing and drawing not counted; arrays of up to {recorded / 1e6:,.0f} MB "
        "are in memory until they are stored"
    )
    print_lines(console, [*lines, total])


def describe_time(simulated: float | None, wall: float) -> str:
    """Return how much of a study's time was simulation.

    Args:
        simulated: seconds of simulation in this process, without compiling; None: in others.
        wall: seconds of the study, from the start of its command.
    """
    if simulated is None:
        return f"{wall:.1f} s, simulation in other processes"
    return f"simulation {simulated:.1f} s of {wall:.1f} s ({simulated / wall:.0%})"
