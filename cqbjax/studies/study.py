"""A study: check its points, run one, store one, show all.

Composing (`grid.py`), running and storing are separate, so that another launcher can do each in
its own way.
"""

import dataclasses
import datetime
import functools
import importlib.metadata
import json
import platform
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from omegaconf import DictConfig, ListConfig, OmegaConf
from rich.console import Console

from cqbjax.datasets import DatasetSource
from cqbjax.files import content_key
from cqbjax.offline import fits, training
from cqbjax.offline.learnt import Learnt, Trained
from cqbjax.policies import Optimal
from cqbjax.report import results
from cqbjax.studies.grid import Point, compose, seeds, settle
from cqbjax.sweeping import backend, checkpoint, plan
from cqbjax.sweeping.checks import check_batch, check_sweep
from cqbjax.sweeping.plan import Part, PerSeed
from cqbjax.sweeping.progress import Reporter
from cqbjax.sweeping.sweep import part, sweep_parts
from cqbjax.types import Policy, Source

SHOWN_VERSIONS = (
    "cqbjax", "jax", "jaxlib", "numpy", "xarray", "hydra-core", "flax", "optax", "scikit-learn",
)  # fmt: skip


class Ready(NamedTuple):
    """A point that has been checked, with what it runs.

    Attributes:
        point: from `settle`.
        source: made from its configuration.
        policies: label -> policy; those that learn offline are untrained until `train`.
    """

    point: Point
    source: Source | DatasetSource
    policies: Mapping[str, Any]


# The keys of a configuration that numbers follow from.
COMPUTING = [
    "policy", "source", "arrival_rate", "num_seeds", "first_seed", "horizon", "record_every", "K",
    "capacity", "tuning_seed",
]  # fmt: skip
# A figure of more pairs of panels cannot be read: it shows where they end instead.
MOST_PANELS = 18


def console() -> Console:
    """Return where tables are printed: as wide as the terminal, or wide enough for a file."""
    return Console(width=None if sys.stdout.isatty() else 150)


def check_point(
    point: Point, source: Source | DatasetSource, policies: Mapping[str, Policy | Learnt]
) -> None:
    """Refuse what a point cannot run, before anything is trained or compiled.

    Args:
        point: from `settle`.
        source: made from `point.config.source`.
        policies: label -> policy, made from `point.config.policy`.

    Raises:
        ValueError: in one sentence, for anything out of range.
    """
    config, learnt = point.config, _learnt(policies)
    if learnt and not isinstance(source, DatasetSource):
        label = next(iter(learnt))
        raise ValueError(f"policy {label} learns from a dataset's offline split: pick a source")
    drawn = source.queries if isinstance(source, DatasetSource) else source
    others: dict[str, Any] = {k: v for k, v in policies.items() if k not in learnt}
    problem = check_sweep(
        others or {"optimal": Optimal()}, drawn, config.arrival_rate, np.asarray(seeds(config)),
        config.horizon, config.K, config.capacity,
    )  # fmt: skip
    check_batch(config.chunk, config.memory_gb)
    for policy in learnt.values():
        policy.check(problem)
    first = plan.choose_records(config.horizon, config.record_every).every
    if min(config.table_rounds) < min(first, config.horizon):
        raise ValueError(
            f"table_rounds={config.table_rounds} must not lie before round {first}, the first one "
            "recorded: raise it, or lower record_every"
        )


def _learnt(policies: Mapping[str, Policy | Learnt]) -> dict[str, Learnt]:
    return {label: policy for label, policy in policies.items() if isinstance(policy, Learnt)}


def train(
    point: Point,
    source: Source | DatasetSource,
    policies: Mapping[str, Policy | Learnt],
    progress: Reporter | None = None,
) -> dict[str, Policy | PerSeed]:
    """Return the policies of a point, those that learn offline trained for each of its seeds.

    Args:
        point: from `settle`.
        source: made from `point.config.source`.
        policies: label -> policy, made from `point.config.policy`; `check_point` has passed them.
        progress: told of the fits.
    """
    if not _learnt(policies):
        ready: dict[str, Any] = dict(policies)
        return ready
    assert isinstance(source, DatasetSource)
    config = point.config
    return training.per_seed(
        policies, source, list(seeds(config)), fits.cache_folder(config.cache_dir),
        config.tuning_seed, progress,
    )  # fmt: skip


def tuned(
    point: Point, source: Source | DatasetSource, policies: Mapping[str, Policy | Learnt]
) -> dict[str, Any]:
    """Return label -> the routers that `train` fitted, as they were tuned.

    A router is a list of settings, each with how many `seeds` were fitted with it.
    """
    config = point.config
    if not isinstance(source, DatasetSource):
        return {}
    routers = {label: p.router for label, p in policies.items() if isinstance(p, Trained)}
    if not routers:
        return {}
    data = fits.read(source, fits.cache_folder(config.cache_dir))
    splits = [config.tuning_seed if config.tuning_seed is not None else s for s in seeds(config)]
    # Both pairings of a router share its fits, and so its tuning.
    counts = {
        router: Counter(fits.tuned(router, data, split) for split in splits)
        for router in set(routers.values())
    }
    return {
        label: [
            {"router": type(one).__name__, "seeds": count} | dataclasses.asdict(one)  # type: ignore[call-overload]
            for one, count in counts[router].most_common()
        ]
        for label, router in routers.items()
    }


def run(
    trained: Sequence[Ready],
    progress: Reporter | None = None,
    resume: Path | None = None,
) -> list[xr.Dataset]:
    """Run points, all that can be in one batch.

    Args:
        trained: checked points, their policies trained; the first one's `chunk` and `memory_gb`
            are those of all.
        progress: told of compiling and of rounds done.
        resume: folder of what is finished of them, as in `sweep`.

    Returns:
        A dataset of `sweep` a point, its attributes complete for `store`.

    Raises:
        ValueError: in one sentence, for anything out of range.
    """
    config = trained[0].point.config
    parts = [_part(each) for each in trained]
    stored = sweep_parts(parts, config.chunk, config.memory_gb, None, progress, resume)
    return [
        data.assign_attrs(experiment=each.point.config.name, **_origin(each))
        for data, each in zip(stored, trained, strict=True)
    ]


def _part(trained: Ready) -> Part:
    """Return what the simulator is to run of a point."""
    config, source = trained.point.config, trained.source
    return part(
        trained.policies, source.queries if isinstance(source, DatasetSource) else source,
        config.arrival_rate, seeds(config), config.horizon, config.K, config.record_every,
        config.capacity,
    )  # fmt: skip


def _origin(trained: Ready) -> dict[str, Any]:
    """Return the attributes that say where a point's queries come from."""
    source = trained.source
    if isinstance(source, DatasetSource):
        return {"source": source.table.name, "stand_in": source.table.stand_in}
    slackness = float(trained.point.config.slackness)
    return {"source": "synthetic", "stand_in": "", "slackness": slackness}


def store(
    point: Point,
    data: xr.Dataset,
    folder: Path,
    seconds: float,
    tuned: Mapping[str, Any] | None = None,
    content: str | None = None,
) -> Path:
    """Store one point's arrays, manifest and resolved configuration atomically.

    Args:
        point: from `settle`.
        data: from `run`.
        folder: of the experiment; the point goes below it.
        seconds: the point took, fits and compiling included, with those batched with it.
        tuned: label -> the hyper-parameters that a router was fitted with, from `tuned`.
        content: from `content_of`.

    Returns:
        The point's file.
    """
    per_policy = data.sizes["arrival_rate"] * data.sizes["seed"] * data.attrs["horizon"]
    labels = [str(label) for label in data.policy.values]
    manifest = {
        "experiment": point.config.name,
        "point": point.name,
        "varied": point.varied,
        "left_out": point.left_out,
        "content": content or "",
        "code": checkpoint.code(),
        "tuned": dict(tuned or {}),
        "versions": {"python": platform.python_version()}
        | {name: _version(name) for name in SHOWN_VERSIONS},
        "revision": _revision(),
        "machine": backend.describe(),
        "finished": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds, 2),
        "compile_seconds": _by_policy(labels, data.compile_seconds.values),
        "run_seconds": _by_policy(labels, data.seconds_per_round.values * per_policy),
    }
    where = _place(point, folder)
    results.save(data, manifest, OmegaConf.to_yaml(point.config), where)
    return where


def _place(point: Point, folder: Path) -> Path:
    """Return a point's file."""
    return folder / f"{point.name}{results.ENDING}"


def content_of(ready: Ready) -> str:
    """Hash all that a point's numbers follow from: configuration, data, and the code.

    Args:
        ready: a checked point; its policies may be untrained.
    """
    config, source = ready.point.config, ready.source
    computing: Any = OmegaConf.to_container(OmegaConf.masked_copy(config, COMPUTING))
    data = ""
    if isinstance(source, DatasetSource):
        computing["source"].pop("data_dir", None)
        data = f"{source.digest} {source.departure_digest}"
    words = json.dumps(computing, sort_keys=True, default=str)
    return content_key(words, data, checkpoint.code(*ready.policies.values()))


def finished(ready: Ready, folder: Path) -> bool:
    """Tell whether a point is stored already, with the same configuration, data and code."""
    where = _place(ready.point, folder)
    if ready.point.config.rerun or not where.is_file():
        return False
    try:
        return bool(results.read_manifest(where).get("content") == content_of(ready))
    except results.ResultError:
        return False  # torn, or of an older kind: it is computed again


def _by_policy(labels: list[str], values: np.ndarray) -> dict[str, float]:
    """Round seconds for a manifest."""
    return {label: round(float(value), 3) for label, value in zip(labels, values, strict=True)}


@functools.cache
def _version(package: str) -> str:
    """Return an installed version, or say that the package is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


@functools.cache
def _revision() -> str:
    """Return the commit that last changed the package, marked if files were changed since.

    Nothing where the package is not in a checkout.
    """
    git = ["git", "-C", str(Path(__file__).parents[1])]
    try:
        last, changed = (
            subprocess.run([*git, *words, "--", "."], capture_output=True, text=True).stdout.strip()
            for words in (("log", "-1", "--format=%h"), ("status", "--porcelain"))
        )
    except OSError:
        return ""
    return f"{last}-dirty" if last and changed else last


def show(
    points: list[xr.Dataset], config: DictConfig, stem: str, console: Console | None = None
) -> list[Path]:
    """Draw the figure and the table of a study from stored points, and print the table.

    The paper's own numbers stand beside ours wherever it reports the same setting.

    Args:
        points: from `results.load_points`.
        config: of the study; `title, figure_policies, spread, queue, table, table_rounds` are read.
        stem: file name without ending, below `figures/` and `tables/` of `results_dir`.
        console: where the table is printed.

    Returns:
        The files written.
    """
    # Matplotlib and Polars are not waited for before the first round.
    from cqbjax.report import figures, over_keys, paper, tables

    title = config.title or config.name
    horizon = min(int(point.attrs["horizon"]) for point in points)
    rounds = sorted({min(int(t), horizon) for t in config.table_rounds})
    make: Callable[..., Any] = (
        tables.throughput_table if config.table == "throughput" else tables.gap_table
    )
    reference = {"reference": config.compared} if config.get("compared") else {}
    table = paper.beside(make(points, rounds=rounds, **reference))
    root = Path(config.results_dir)
    written = list(tables.save_table(table, root / "tables" / stem, title))
    tables.print_table(table, title, console)
    drawn = [_only(point, config.figure_policies) for point in points]
    if sum(point.sizes["arrival_rate"] for point in points) > MOST_PANELS:
        figure = over_keys.draw_over_keys(drawn)
    else:
        figure = figures.draw_queue_and_regret(drawn, spread=config.spread, queue=config.queue)
    return [*written, *figures.save_figure(figure, root / "figures" / stem)]


def simulated_seconds(points: Sequence[xr.Dataset]) -> float:
    """Return the seconds in which a study's points were simulated, compiling apart."""
    return sum(
        float(point.seconds_per_round.sum())
        * point.sizes["arrival_rate"]
        * point.sizes["seed"]
        * point.attrs["horizon"]
        for point in points
    )


def time_spent(points: Sequence[xr.Dataset], wall: float) -> str:
    """Say how much of a command's time was simulation.

    Args:
        points: of the study.
        wall: seconds since the command began.
    """
    simulated = simulated_seconds(points)
    return f"simulation {simulated:.1f} s of {wall:.1f} s ({simulated / wall:.0%})"


def _only(point: xr.Dataset, labels: ListConfig | None) -> xr.Dataset:
    """Keep the policies to draw."""
    if labels is None:
        return point
    kept = [label for label in point.policy.values if label in labels]
    return point.sel(policy=kept) if kept else point


def checked_points(
    config: DictConfig,
    make_source: Callable[[DictConfig], Any],
    make_policies: Callable[[DictConfig], Mapping[str, Policy | Learnt]],
    swept: Mapping[str, Any] | None = None,
    sources: dict[str, Any] | None = None,
) -> list[Ready]:
    """Compose and check every point of a configuration.

    Args:
        config: of the study.
        make_source: makes a source of its configuration.
        make_policies: makes policies, by label.
        swept: key -> value, what tells this configuration from others of its sweep.
        sources: those made before, by their configurations; new ones are added.

    Raises:
        ValueError: in one sentence, for anything out of range at any point.
    """
    ready: list[Ready] = []
    sources = {} if sources is None else sources
    for point in compose(config, swept or {}):
        # The points of a dataset share one table: it is read once.
        key = OmegaConf.to_yaml(point.config.source)
        if key not in sources:
            sources[key] = make_source(point.config.source)
        source, policies = sources[key], make_policies(point.config.policy)
        point = settle(point, source)
        check_point(point, source, policies)
        ready.append(Ready(point, source, policies))
    return ready


def run_all(
    ready: Sequence[Ready], folder: Path, progress: Reporter, console: Console
) -> list[xr.Dataset]:
    """Train, run and store every point, all in one batch where their programs are the same.

    Points that are finished already are taken as they are, unless `rerun` says otherwise.

    Args:
        ready: from `checked_points`: all are checked before the first runs.
        folder: of the experiment.
        progress: told of fits, compiling and rounds.
        console: told of what is left out and of the dataset.

    Returns:
        The stored points, read back.
    """
    left = [one for one in ready if not finished(one, folder)]
    if len(left) < len(ready):
        console.print(f"{len(ready) - len(left)} of {len(ready)} points are stored: not run again")
    if left:
        _run_left(left, folder, progress, console)
    places = [_place(one.point, folder) for one in ready]
    return [point for place in places for point in results.load_points(place)]


def _run_left(ready: Sequence[Ready], folder: Path, progress: Reporter, console: Console) -> None:
    """Train, run and store points."""
    begun, trained = time.perf_counter(), []
    for point, source, policies in ready:
        tell(point, source, console)
        trained.append(Ready(point, source, train(point, source, policies, progress)))
    resume = folder / ".unfinished"
    every = run(trained, progress, resume)
    seconds = time.perf_counter() - begun
    for one, data in zip(ready, every, strict=True):
        store(one.point, data, folder, seconds, tuned(*one), content_of(one))
    shutil.rmtree(resume, ignore_errors=True)


def tell(point: Point, source: Source | DatasetSource, console: Console) -> None:
    """Print what a point leaves out, and what is known of its dataset."""
    for reason in sorted(set(point.left_out.values())):
        names = ", ".join(label for label, why in point.left_out.items() if why == reason)
        console.print(f"{point.name}: {names} left out ({reason})")
    if isinstance(source, DatasetSource):
        told = source.describe(point.config.K, point.config.arrival_rate)
        console.print(told, markup=False, soft_wrap=True)
