"""Studies of what the paper's proofs are made of: switching queues, smallest eigenvalues, slopes.

Switching queues and eigenvalues are no runs of policies, and so no ordinary points: their tables
and figures are made at once, and hold what can be seen in them. Slopes are of stored runs.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import polars as pl
import xarray as xr
from omegaconf import DictConfig
from rich.console import Console

from cqbjax.core.labels import OPTIMAL
from cqbjax.core.pytree import arrays
from cqbjax.core.queueing import QueueOverflow
from cqbjax.core.types import Source
from cqbjax.datasets import DatasetSource
from cqbjax.figures import files as figure_files
from cqbjax.figures import theory as drawing
from cqbjax.policies import Acqb
from cqbjax.results import tables
from cqbjax.studies import grid
from cqbjax.studies.arriving import queries
from cqbjax.studies.grid import Ready
from cqbjax.sweeping.groups import START_CAPACITY, more_slots, most_slots
from cqbjax.sweeping.parts import choose_records
from cqbjax.sweeping.progress import Reporter
from cqbjax.sweeping.sweep import sweep
from cqbjax.theory import eigenvalues, lemma, slopes, switching

T = TypeVar("T")


class Measured(NamedTuple):
    """What a study of a proof measured.

    Attributes:
        table: that is printed.
        figure: Matplotlib's.
        others: ending of a name -> a further table.
    """

    table: pl.DataFrame
    figure: Any
    others: Mapping[str, pl.DataFrame]


def reckon(ready: Sequence[Ready], console: Console) -> None:
    """Say how many rounds every point would simulate."""
    for one in ready:
        console.print(f"{one.point.name}: {_cost(one):,} rounds", markup=False)


def measure(ready: Sequence[Ready], config: DictConfig, progress: Reporter) -> Measured:
    """Measure every point.

    Args:
        ready: checked points.
        config: of the study.
        progress: told of compiling and running.

    Raises:
        ValueError: a policy that keeps no V, or a capacity that was given and is too small.
    """
    progress.expect(sum(_cost(one) for one in ready))
    chosen = {"switching": _switching, "eigenvalues": _eigenvalues}[config.theory.measure]
    return chosen(ready, config, progress)


def show(measured: Measured, config: DictConfig, console: Console) -> list[Path]:
    """Print and write the tables, draw the figure. Return the files written."""
    title, root = config.title or config.name, Path(config.results_dir)
    written = list(tables.save_table(measured.table, root / "tables" / config.name, title))
    for name, frame in measured.others.items():
        stem = root / "tables" / f"{config.name}_{name}"
        written += tables.save_table(frame, stem, f"{title}: {name}")
    tables.print_table(measured.table, title, console)
    return [*written, *figure_files.save(measured.figure, root / "figures" / config.name)]


def show_slopes(
    points: Sequence[xr.Dataset], config: DictConfig, stem: str, console: Console | None
) -> list[Path]:
    """Fit, print and write the slopes of stored points; draw them on log-log axes.

    Args:
        points: of the study.
        config: of it; `theory.windows` says over which rounds.
        stem: file name without ending of the figure; the table's has `_slopes` behind it.
        console: where the table is printed.

    Returns:
        The files written.
    """
    root, title = Path(config.results_dir), config.title or config.name
    made = slopes.table(points, config.theory.windows)
    caption = f"{title}: slopes on log-log axes"
    written = list(tables.save_table(made, root / "tables" / f"{stem}_slopes", caption))
    tables.print_table(made, caption, console)
    figure = drawing.draw_slopes(points, title)
    return [*written, *figure_files.save(figure, root / "figures" / stem)]


def _rivals(one: Ready) -> dict[str, Any]:
    return {label: policy for label, policy in one.policies.items() if label != OPTIMAL}


def _source(one: Ready) -> Source:
    """Return where a point's queries come from.

    Raises:
        ValueError: from a dataset, which has no theta* and no sigma_0 of the paper's.
    """
    if isinstance(one.source, DatasetSource):
        raise ValueError(f"theory.measure={one.point.config.theory.measure} is of source=synthetic")
    return queries(one.point.config, one.source)


def _cost(one: Ready) -> int:
    """Return how many rounds a point simulates."""
    config = one.point.config
    return _rounds_a_policy(config) * len(_rivals(one)) * len(config.arrival_rate)


def _rounds_a_policy(config: DictConfig) -> int:
    """Return how many rounds a policy simulates at a rate: of switching queues in all processes."""
    processes = config.horizon + 1 if config.theory.measure == "switching" else 1
    return int(config.num_seeds * config.horizon * processes)


def _with_room(config: DictConfig, run: Callable[[int], T]) -> T:
    """Run with as many queue slots as were asked for, or with more until they are enough."""
    if config.capacity != "auto":
        return run(int(config.capacity))
    slots = min(START_CAPACITY, most_slots(config.horizon))
    while True:
        try:
            return run(slots)
        except QueueOverflow:
            slots = more_slots(slots, config.horizon)


def _switching(ready: Sequence[Ready], config: DictConfig, progress: Reporter) -> Measured:
    """Count the rules of Lemma 1 and average psi, a policy and point after another."""
    rules, left = [], []
    for one in ready:
        own, source, seeds = one.point.config, _source(one), grid.seeds(one.point.config)
        problem = source.problem(own.K, own.horizon)
        for rate in own.arrival_rate:
            alone = sweep(
                _rivals(one), source, arrival_rates=[rate], seeds=list(seeds),
                horizon=own.horizon, assortment_size=own.K, record_every=1, progress=progress,
            ).isel(arrival_rate=0)  # fmt: skip
            best = _from_the_first(alone["optimal_queue_length"])
            for label, policy in _rivals(one).items():
                fixed = arrays(policy), arrays(source), rate, problem, np.asarray(seeds)
                run = functools.partial(switching.run, *fixed, progress=progress)
                made = _with_room(own, run)
                progress.advance(_rounds_a_policy(own))
                setting = {"K": own.K, "arrival_rate": rate, "policy": label, "seeds": len(seeds)}
                queue = _from_the_first(alone["queue_length"].sel(policy=label))
                rules.append(_labelled(lemma.rules(made, queue, best), setting))
                left.append(_labelled(lemma.by_switch(made, config.theory.block), setting))
    frame = pl.concat(left)
    figure = drawing.draw_switching(frame, config.title or config.name)
    return Measured(pl.concat(rules), figure, {"by_switch": frame})


def _from_the_first(lengths: xr.DataArray) -> np.ndarray:
    """Return Q(t) for t = 1 .. T + 1 of the recorded Q(t + 1): [S, T + 1]."""
    by_round = lengths.transpose("seed", "round").values
    return np.concatenate([np.zeros((len(by_round), 1), int), by_round], axis=1)


def _labelled(frame: pl.DataFrame, setting: dict[str, Any]) -> pl.DataFrame:
    """Put the columns of a setting before a frame's own."""
    own = [pl.lit(value).alias(key) for key, value in setting.items()]
    return frame.select(*own, pl.all())


def _eigenvalues(ready: Sequence[Ready], config: DictConfig, progress: Reporter) -> Measured:
    """Measure the smallest eigenvalues of every point."""
    points, tabulated = [], []
    for one in ready:
        own, source, policies = one.point.config, _source(one), _rivals(one)
        for label, policy in policies.items():
            if not isinstance(policy, Acqb):
                raise ValueError(f"policy {label} keeps no V: name ACQB or a relative of it")
        every = choose_records(own.horizon, own.record_every).every
        problem, seeds = source.problem(own.K, own.horizon), np.asarray(grid.seeds(own))
        each = {label: arrays(policy) for label, policy in policies.items()}
        for rate in own.arrival_rate:
            fixed = each, arrays(source), rate, problem, seeds, every
            run = functools.partial(eigenvalues.measure, *fixed, progress=progress)
            point = _with_room(own, run)
            progress.advance(_rounds_a_policy(own) * len(policies))
            setting = {"K": own.K, "parameters": own.parameters, "arrival_rate": rate}
            points.append(point.assign_attrs(**setting, c1=float(own.c1)))
            rounds = [t for t in config.table_rounds if t in point["round"].values]
            tabulated.append(_labelled(eigenvalues.table(points[-1], rounds), setting))
    figure = drawing.draw_eigenvalues(points, config.title or config.name)
    return Measured(pl.concat(tabulated), figure, {})
