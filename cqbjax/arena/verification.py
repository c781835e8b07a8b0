"""Verification of an entry: its table is derived again, and some of its runs are repeated."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import xarray as xr

from cqbjax.arena import board as boards
from cqbjax.arena.board import Board
from cqbjax.arena.report import TABLE
from cqbjax.arena.scores import RANDOM
from cqbjax.arena.tasks import Composer, Request, compose_task, select_tasks
from cqbjax.core import backend
from cqbjax.core.labels import OPTIMAL
from cqbjax.engine.batches import plan_sweep
from cqbjax.engine.progress import Reporter
from cqbjax.engine.sweep import run_plan
from cqbjax.engine.validation import build_spec
from cqbjax.experiments import configs, grid, manifests, study
from cqbjax.experiments.configs import ComposedConfig, Config
from cqbjax.experiments.grid import PreparedPoint
from cqbjax.offline import OfflinePolicy
from cqbjax.results import store as results
from cqbjax.results import tables
from cqbjax.testing.fairness import MaskedKeys, permute_servers, run_mask

# Seeds that run again, and seeds on which a policy runs anonymised.
REPEATED, ANONYMISED = 2, 10
ARRAYS = ("queue_length", "departures", "regret", "explored")
# An anonymised policy may lose this much of its score; a larger loss is an error at this p value.
LARGEST_LOSS, SIGNIFICANT = 0.1, 0.001


class RepeatedPolicy(NamedTuple):
    """A policy in a task of an entry, whose runs are repeated.

    Attributes:
        task: its name.
        label: label of the policy.
        point: the stored arrays of the task.
        config: its configuration.
    """

    task: str
    label: str
    point: xr.Dataset
    config: ComposedConfig

    def prepare(self, seeds: np.ndarray, composer: Composer) -> PreparedPoint:
        """Return its point, ready to run at consecutive seeds, with the task's own optimum."""
        values = {"first_seed": int(seeds[0]), "num_seeds": len(seeds)}
        ready = composer.prepare(self.config.with_values(values))
        own = (OPTIMAL, self.label)
        return ready._replace(policies={x: ready.policies[x] for x in own if x in ready.policies})


def verify(folder: Path, values: Mapping[str, str], composer: Composer) -> None:
    """Verify the entry in a folder, and print what was verified.

    Args:
        folder: folder of the entry.
        values: `samples` (how many run again), `seed` and `data_dir`.
        composer: composes and instantiates the tasks.

    Raises:
        ValueError: naming the first contradiction.
    """
    for name in (boards.NOTES, boards.NUMBERS, TABLE):
        if not (folder / name).is_file():
            raise ValueError(f"{folder} is no entry of the arena: {name} is not there")
    rng = np.random.default_rng(int(values["seed"]) if values["seed"] else None)
    backend.configure()
    # The entry contains a copy of the policy's file.
    sys.path.insert(0, str(folder.resolve()))
    made, board = boards.read_board(folder), boards.read_board()
    samples, rows = list[RepeatedPolicy](), list[pl.DataFrame]()
    for task, note in made.notes.items():
        (stored,) = results.stored_points(folder / "data" / task, key=note["content"])
        seeds = range(note["first_seed"], note["first_seed"] + note["seeds"])
        wanted = {*note["policies"], OPTIMAL}
        labels = [label for label in stored.point.policy.values if label in wanted]
        point = stored.point.sel(policy=labels, seed=seeds)
        config = configs.parse_yaml(stored.config)
        if values["data_dir"]:
            config = config.with_values({"data_dir": values["data_dir"]})
        _check_task(task, config, composer)
        rows.append(boards.tabulate_point(point, task))
        tested = [label for label in note["policies"] if label != OPTIMAL]
        samples += [RepeatedPolicy(task, label, point, config) for label in tested]
    by = ["task", "policy", "seed"]
    if not pl.concat(rows).sort(by).equals(made.rows.sort(by)):
        raise ValueError(f"{folder}: {boards.NUMBERS} does not follow from its arrays")
    _check_table(made, board, folder)
    print(f"{folder}: the table follows from the stored arrays of {len(made.notes)} tasks")
    for number in rng.permutation(len(samples))[: int(values["samples"])]:
        sample = samples[number]
        _repeat(sample, rng, composer)
        print(f"{sample.task}, {sample.label}: run again, the same to the last bit")
        outcome = _run_anonymised(sample, rng, made, board, composer)
        print(f"{sample.task}, {sample.label}: {outcome}")


def _check_task(task: str, config: ComposedConfig, composer: Composer) -> None:
    """Raise if a task's configuration differs from the arena's, seeds and rounds apart."""
    (of_arena,) = select_tasks([task])
    ours = compose_task(of_arena, Request(seeds=int(config.num_seeds)), composer)
    (point,) = grid.compose(ours.with_values({"horizon": config.horizon}))
    here, there = _list_settings(point.config), _list_settings(config)
    for key in {**here, **there}:
        if here.get(key) != there.get(key):
            raise ValueError(
                f"task {task} is not the arena's: it was run with {key}={there.get(key)}, and not "
                f"{here.get(key)}"
            )


def _list_settings(config: Config) -> dict[str, Any]:
    """Return the settings that determine a result, policies apart, with file names for paths."""

    def shorten(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: shorten(one) for key, one in value.items() if key != "data_dir"}
        return Path(value).name if isinstance(value, str) and "/" in value else value

    ignored = (*manifests.DISPLAY_KEYS, "policy", "rates_by_K", "grid")
    return {k: shorten(v) for k, v in configs.to_plain(config).items() if k not in ignored}


def _check_table(made: Board, board: Board, folder: Path) -> None:
    """Raise if the table does not follow from the rows."""
    path = folder / f".{TABLE}"
    tables.write_csv(path, boards.tabulate_policies(boards.add_known(made, board)))
    text, theirs = path.read_text(), (folder / TABLE).read_text()
    path.unlink()
    if text != theirs:
        lines = zip(theirs.splitlines(), text.splitlines(), strict=False)
        wrong = (", ".join(one.split(",")[:2]) for one, other in lines if one != other)
        raise ValueError(
            f"{folder}: {TABLE} does not follow from its arrays at "
            f"{next(wrong, 'the number of rows')}, or was compared with another board"
        )


def _repeat(sample: RepeatedPolicy, rng: np.random.Generator, composer: Composer) -> None:
    """Run a sample again at some of its seeds, and raise if an array differs."""
    seeds = sample.point.seed.values
    first = int(rng.integers(len(seeds) - min(REPEATED, len(seeds)) + 1))
    seeds = seeds[first : first + REPEATED]
    ready = sample.prepare(seeds, composer)
    (again,) = ready.study_type.run([ready], Reporter())
    for label in (OPTIMAL, sample.label):
        for name in ARRAYS:
            old = sample.point[name].sel(policy=label, seed=seeds)
            if not np.array_equal(old.values, again[name].sel(policy=label).values):
                raise ValueError(
                    f"task {sample.task}, policy {label}: {name} differs when it is run again"
                )


def _paired_p(differences: np.ndarray) -> float:
    """Return the p value of a two-sided paired t test; 0 if all differences are equal.

    A rank test of so few seeds is never significant.
    """
    from scipy.stats import ttest_1samp

    return float(ttest_1samp(differences, 0).pvalue) if np.ptp(differences) > 0 else 0.0


def _run_anonymised(
    sample: RepeatedPolicy, rng: np.random.Generator, made: Board, board: Board, composer: Composer
) -> str:
    """Run a sample with anonymised random keys and permuted LLMs; return how its score changes.

    Raises:
        ValueError: the policy does much worse: it has information that no feedback gave.
    """
    seeds = sample.point.seed.values[:ANONYMISED]
    ready = sample.prepare(seeds, composer)
    policy, config = ready.policies[sample.label], ready.point.config
    if isinstance(policy, OfflinePolicy):
        return "trained offline on known LLMs, so not run anonymised"
    source = study.build_source(ready)
    number = source.problem(config.K, config.horizon).num_servers
    # A rotation, so that every LLM of several gets another number.
    places = 1 + rng.integers(max(1, number - 1))
    order = tuple(int(one) for one in np.roll(np.arange(number), places))
    masked = MaskedKeys(policy=policy, mask=run_mask(int(rng.integers(2**20))))
    run = build_spec(
        {**ready.policies, sample.label: masked}, permute_servers(source, order),
        config.arrival_rate, seeds.tolist(), config.horizon, config.K, config.record_every,
        config.capacity,
    )  # fmt: skip
    own = pl.col("policy") == sample.label, pl.col("task") == sample.task
    (again,) = run_plan(plan_sweep([run]))
    there = boards.tabulate_point(again, sample.task).filter(own).sort("seed")["gap"]
    here = made.rows.filter(own, pl.col("seed").is_in(seeds.tolist())).sort("seed")["gap"]
    difference = (there - here).to_numpy()
    # Scores are normalised by random routing, from the entry or from the board.
    gaps = (one.rows.filter(task=sample.task, policy=RANDOM)["gap"] for one in (made, board))
    scale: Any = next((gap.mean() for gap in gaps if len(gap)), 0.0)
    loss = float(difference.mean()) / scale if scale > 0 else 0.0
    if loss > LARGEST_LOSS and _paired_p(difference) < SIGNIFICANT:
        raise ValueError(
            f"task {sample.task}, policy {sample.label} knows more than its feedback tells: with "
            f"anonymised keys and permuted LLMs its score falls by {loss:.2f}"
        )
    return f"with anonymised keys and permuted LLMs its score changes by {-loss:+.2f} " + (
        f"on {len(seeds)} seeds"
    )
