"""Is an entry of the arena what it says? Its table anew, pieces anew, and again without knowing."""

import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import xarray as xr

from cqbjax.cli import _multirun, _shown, _tasks
from cqbjax.cli._hydra import make, make_policies
from cqbjax.core import backend
from cqbjax.core.labels import OPTIMAL
from cqbjax.engine.progress import Reporter
from cqbjax.engine.sweep import run_specs
from cqbjax.engine.validation import build_spec
from cqbjax.experiments import configs, grid, kinds, manifests, replaying, study
from cqbjax.experiments.configs import Composed, Config
from cqbjax.experiments.grid import Ready
from cqbjax.offline import Learnt
from cqbjax.results import board as boards
from cqbjax.results import scores, tables
from cqbjax.results import stored as results
from cqbjax.results.board import Board
from cqbjax.testing.contract.fair import Masked, mask_of, reordered

# Seeds of a piece that are run again, and seeds at which a policy is run without knowing.
AGAIN, MASKED = 2, 10
ARRAYS = ("queue_length", "departures", "regret", "explored")
# How much worse a policy may be without its keys and with other numbers of the LLMs: in scores, and
# how unlikely that would be by chance.
MOST_WORSE, UNLIKELY = 0.1, 0.001


class Piece(NamedTuple):
    """A policy in a task of an entry.

    Attributes:
        task: which.
        label: of the policy.
        point: what is stored of the task.
        config: its configuration.
    """

    task: str
    label: str
    point: xr.Dataset
    config: Composed


def verify(folder: Path, told: dict[str, str]) -> None:
    """Verify the entry in a folder.

    Args:
        folder: of the entry.
        told: `pieces`, `seed` and `data_dir`, from `_words.check`.

    Raises:
        ValueError: in one sentence, what is not as the entry says.
    """
    for name in (boards.NOTES, boards.NUMBERS, _shown.TABLE):
        if not (folder / name).is_file():
            raise ValueError(f"{folder} is no entry of the arena: {name} is not there")
    draws = np.random.default_rng(int(told["seed"]) if told["seed"] else None)
    backend.configure()
    # The policy's file is beside its numbers.
    sys.path.insert(0, str(folder.resolve()))
    made, known = boards.read(folder), boards.read()
    stored = _stored(folder, made)
    _same_tasks(stored)
    _same_rows(stored, made, folder)
    _same_table(made, known, folder)
    print(f"{folder}: the table follows from the stored arrays of {len(stored)} tasks")
    pieces = [
        Piece(task, label, point, config)
        for task, (point, config) in stored.items()
        for label in made.notes[task]["policies"]
        if label != OPTIMAL
    ]
    for number in draws.permutation(len(pieces))[: int(told["pieces"])]:
        piece = pieces[number]
        if told["data_dir"]:
            there = piece.config.at({"data_dir": told["data_dir"]})
            piece = piece._replace(config=there)
        _same_again(piece, draws)
        print(f"{piece.task}, {piece.label}: run again, the same to the last bit")
        print(f"{piece.task}, {piece.label}: {_without_knowing(piece, draws, made, known)}")


def _stored(folder: Path, made: Board) -> dict[str, tuple[xr.Dataset, Composed]]:
    """Return what is stored of each task: its arrays and its configuration."""
    stored = {}
    for task, note in made.notes.items():
        (one,) = results.stored_points(folder / "data" / task, content=note["content"])
        labels = [
            label for label in one.point.policy.values if label in {*note["policies"], OPTIMAL}
        ]
        stored[task] = one.point.sel(policy=labels), configs.of_yaml(one.config)
    return stored


def _same_tasks(stored: dict[str, tuple[xr.Dataset, Composed]]) -> None:
    """Refuse a task whose configuration is another than the arena's, but for seeds and rounds."""
    with _multirun.initialised():
        for task, (_, config) in stored.items():
            (of_arena,) = _tasks.chosen([task])
            asked = _tasks.Asked(int(config.num_seeds), 1.0, False, Path())
            own = _tasks.composed(of_arena, asked, [f"horizon={config.horizon}"])
            (point,) = grid.compose(own)
            ours, theirs = _told(point.config), _told(config)
            # What a log was prepared with is the log's, where the task leaves it open.
            left_open = [key for key in replaying.USED if ours["kind"].get(key, "") is None]
            theirs["kind"] |= dict.fromkeys(left_open)
            apart = [key for key in {**ours, **theirs} if ours.get(key) != theirs.get(key)]
            if apart:
                said = f"{apart[0]}={theirs.get(apart[0])}, and not {ours.get(apart[0])}"
                raise ValueError(f"task {task} is not the arena's: it was run with {said}")


def _told(config: Config) -> dict[str, Any]:
    """Return what numbers follow from in a configuration, policies apart; of files the names."""
    plain = configs.plain(config)
    for key in (*manifests.FOR_SHOW, "policy", "rates_by_K", "grid"):
        plain.pop(key, None)
    return {key: _named(value) for key, value in plain.items()}


def _named(value: Any) -> Any:
    """Return a value with names in place of paths, which are each machine's own."""
    if isinstance(value, dict):
        return {key: _named(one) for key, one in value.items() if key != "data_dir"}
    return Path(value).name if isinstance(value, str) and "/" in value else value


def _same_rows(stored: dict[str, tuple[xr.Dataset, Composed]], made: Board, folder: Path) -> None:
    """Refuse rows that do not follow from the arrays."""
    anew = pl.concat([boards.rows_of(point, task) for task, (point, _) in stored.items()])
    by = ["task", "policy", "seed"]
    if not anew.sort(by).equals(made.rows.sort(by)):
        raise ValueError(
            f"{folder} is not what it says: {boards.NUMBERS} does not follow from its arrays"
        )


def _same_table(made: Board, known: Board, folder: Path) -> None:
    """Refuse a table that does not follow from the rows."""
    anew, path = _shown.tabled(_shown.compared(made, known)), folder / f".{_shown.TABLE}"
    tables.write_csv(path, anew)
    text = path.read_text()
    path.unlink()
    lines = zip((folder / _shown.TABLE).read_text().splitlines(), text.splitlines(), strict=False)
    apart = [one for one, other in lines if one != other]
    if apart or (folder / _shown.TABLE).read_text() != text:
        said = ", ".join(apart[0].split(",")[:2]) if apart else "a row more or less"
        raise ValueError(
            f"{folder} is not what it says: {_shown.TABLE} does not follow from its arrays at "
            f"{said}, or was set beside another board"
        )


def _ready(piece: Piece, seeds: np.ndarray) -> Ready:
    """Return a piece ready to run at some seeds, which follow one another."""
    given = {"first_seed": int(seeds[0]), "num_seeds": len(seeds)}
    (ready,) = kinds.checked_points(piece.config.at(given), make, make_policies)
    return ready._replace(policies={piece.label: ready.policies[piece.label]})


def _same_again(piece: Piece, draws: np.random.Generator) -> None:
    """Run a piece again at some of its seeds, and refuse what is not the same."""
    seeds = piece.point.seed.values
    first = int(draws.integers(len(seeds) - min(AGAIN, len(seeds)) + 1))
    some = seeds[first : first + AGAIN]
    ready = _ready(piece, some)
    (anew,) = ready.kind.run([ready], Reporter())
    for label in (OPTIMAL, piece.label):
        for name in ARRAYS:
            old = piece.point[name].sel(policy=label, seed=some)
            if not np.array_equal(old.values, anew[name].sel(policy=label).values):
                raise ValueError(
                    f"task {piece.task}, policy {label} is not what it says: run again, its "
                    f"{name} is another"
                )


def _without_knowing(piece: Piece, draws: np.random.Generator, made: Board, known: Board) -> str:
    """Run a piece with keys that say nothing and LLMs of other numbers; say how it does there.

    Raises:
        ValueError: it does worse: it knows what it has not learnt.
    """
    seeds = piece.point.seed.values[:MASKED]
    ready = _ready(piece, seeds)
    policy, config = ready.policies[piece.label], ready.point.config
    if isinstance(policy, Learnt):
        return "it learns offline, from what its source says of each LLM: not asked without"
    source = study.drawn_from(ready)
    number = source.problem(config.K, config.horizon).num_servers
    # None keeps its own, but where there is one alone.
    places = 1 + draws.integers(max(1, number - 1))
    order = tuple(int(one) for one in np.roll(np.arange(number), places))
    masked = Masked(policy=policy, mask=mask_of(int(draws.integers(2**20))), informed=False)
    run = build_spec(
        {piece.label: masked}, reordered(source, order), config.arrival_rate, seeds.tolist(),
        config.horizon, config.K, config.record_every, config.capacity,
    )  # fmt: skip
    (anew,) = run_specs([run])
    there = boards.rows_of(anew, piece.task).filter(policy=piece.label).sort("seed")["gap"]
    here = made.rows.filter(task=piece.task, policy=piece.label)
    here_gap = here.filter(pl.col("seed").is_in(seeds.tolist())).sort("seed")["gap"]
    apart = (there - here_gap).to_numpy()
    floor = _floor(piece, made, known)
    worse = float(apart.mean()) / floor if floor > 0 else 0.0
    if worse > MOST_WORSE and scores.paired_p(apart) < UNLIKELY:
        raise ValueError(
            f"task {piece.task}, policy {piece.label} knows what it has not learnt: where its keys "
            f"do not tell the run and the LLMs have other numbers, its score falls by {worse:.2f}"
        )
    return f"without knowing the run its score is {-worse:+.2f} on {len(seeds)} seeds"


def _floor(piece: Piece, made: Board, known: Board) -> float:
    """Return the mean gap of random routing in a task, from the entry or from the board."""
    for rows in (made.rows, known.rows):
        gaps: Any = rows.filter(task=piece.task, policy=scores.RAND)["gap"]
        if len(gaps):
            return float(gaps.mean())
    return 0.0
