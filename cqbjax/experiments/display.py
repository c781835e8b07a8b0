"""A study shown: its figure, its table, and where the time went."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import xarray as xr
from rich.console import Console

from cqbjax.engine.runner import Estimate
from cqbjax.experiments import validation
from cqbjax.experiments.configs import Config
from cqbjax.experiments.study_types import OutputTable, StudyOutput, StudyType

# Returns what a study shows: a caller of `run` or `report` may extend what its kind shows.
Show = Callable[[StudyType, Sequence[xr.Dataset], Config], StudyOutput]

# A figure of more pairs of panels cannot be read: it shows where they end instead.
MOST_PANELS = 9


def make_console() -> Console:
    """Return where tables are printed: as wide as the terminal, or wide enough for a file."""
    return Console(width=None if sys.stdout.isatty() else 150)


def write_output(
    shown: StudyOutput, config: Config, stem: str, console: Console | None = None
) -> list[Path]:
    """Write what a study shows, and print it.

    Args:
        shown: of `StudyType.show`.
        config: of the study; `results_dir` is read.
        stem: file name without ending, below `figures/` and `tables/` of `results_dir`.
        console: where tables are printed.

    Returns:
        The files written.
    """
    from cqbjax.figures import save_figure
    from cqbjax.results import tables
    from cqbjax.results.frame import drop_point_intervals

    written: list[Path] = []
    folders = [Path(config.results_dir) / name for name in ("tables", "figures")]
    for name, table in shown.tables.items():
        path = folders[0] / "_".join(filter(None, (stem, name)))
        frame = drop_point_intervals(table.frame)
        if table.caption:
            written += tables.save_table(frame, path, table.caption, table.recorded)
        else:
            written.append(path.with_name(f"{path.name}.csv"))
            tables.write_csv(written[-1], frame)
        if table.printed:
            tables.print_table(frame, table.caption, console, table.recorded)
    for name, figure in shown.figures.items():
        written += save_figure(figure, folders[1] / "_".join(filter(None, (stem, name))))
    for line in shown.lines:
        (console or Console()).print(line, markup=False)
    return written


def show_sweep(points: Sequence[xr.Dataset], config: Config) -> StudyOutput:
    """Return the figure and the table of an ordinary study.

    Args:
        points: from `results.load_points`.
        config: of the study; `title, figure_policies, spread, queue, table, table_rounds` are read.
    """
    # Matplotlib and Polars are not waited for before the first round.
    from cqbjax.figures import draw_curves, draw_over_keys, users
    from cqbjax.results.metrics import find_recorded, list_panels

    drawn = [_select_policies(point, config.figure_policies) for point in points]
    if fits_panels(points):
        panels = [name for name in list_panels(drawn, config) if name not in users.ELSEWHERE]
        figure = draw_curves(drawn, panels, config.spread)
    else:
        figure = draw_over_keys(drawn)
    main = OutputTable(
        build_table(points, config), config.title or config.name, recorded=find_recorded(points)
    )
    others = dict(users.draw_user_figures(drawn, fits_panels(points), config.spread))
    return StudyOutput({"": main}, {"": figure, **others})


def build_table(points: Sequence[xr.Dataset], config: Config) -> Any:
    """Return the table of a study."""
    from cqbjax.results import tables

    horizons = {int(point.attrs["horizon"]) for point in points}
    # Of several horizons the configuration names the rounds of the first.
    end = {max(horizons)} if len(horizons) > 1 else set()
    rounds = sorted({min(int(t), max(horizons)) for t in config.table_rounds} | end)
    reference = {"reference": config.compared} if config.get("compared") else {}
    made: Any = getattr(tables, f"{config.table}_table")
    return made(points, rounds, **reference)


def fits_panels(points: Sequence[xr.Dataset]) -> bool:
    """Tell whether points are so few that each has a panel of its own."""
    return sum(point.sizes["arrival_rate"] for point in points) <= MOST_PANELS


def _select_policies(point: xr.Dataset, labels: list[str] | None) -> xr.Dataset:
    """Keep the policies to draw."""
    if labels is None:
        return point
    drawn = [label for label in point.policy.values if label in labels]
    return point.sel(policy=drawn) if drawn else point


def compute_objective(points: Sequence[xr.Dataset], config: Config) -> float:
    """Return what a search is to make small or large: a mean over seeds, rates and points.

    Args:
        points: of one job.
        config: of it; `objective` names metric and policy.
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
    """Say what a sweep would run, and how long that would take.

    Args:
        ready: how many points it has.
        left: how many of them are not stored yet.
        estimates: of these.
        prepared: seconds that composing and checking took.
        recorded: bytes of the arrays that are in memory together until they are stored.
        console: where it is said.
    """
    for one in estimates:
        took = f"compiling {one.compiling:.1f} s, running {one.running:.1f} s"
        console.print(f"{one.description}: {took}", markup=False, soft_wrap=True)
    compiling = sum(one.compiling for one in estimates)
    running = sum(one.running for one in estimates)
    console.print(
        f"{ready} points, {ready - left} of them stored; {len(estimates)} groups, a program each; "
        f"about {prepared + compiling + running:.0f} s: composing and checking {prepared:.0f}, "
        f"compiling {compiling:.0f} (done now, and cached), running {running:.0f}; fits of routers "
        f"and heads, storing and drawing not counted; arrays of up to {recorded / 1e6:,.0f} MB "
        "are in memory until they are stored",
        markup=False, soft_wrap=True,
    )  # fmt: skip


def describe_time(simulated: float | None, wall: float) -> str:
    """Say how much of a study's time was simulation.

    Args:
        simulated: seconds in which this process simulated, compiling apart; None: others did.
        wall: seconds of the study, from the start of its command.
    """
    if simulated is None:
        return f"{wall:.1f} s, simulation in other processes"
    return f"simulation {simulated:.1f} s of {wall:.1f} s ({simulated / wall:.0%})"
