"""Verification of an entry: its files are derived again, and some of its runs are repeated."""

import dataclasses
import functools
import io
import itertools
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import xarray as xr
from rich.console import Console

from cqbjax.arena import board as boards
from cqbjax.arena import scores
from cqbjax.arena.board import Board
from cqbjax.arena.entry import check_contestant
from cqbjax.arena.report import TABLE, write_report
from cqbjax.arena.tasks import Composer, Request, compose_task, select_tasks
from cqbjax.core import backend
from cqbjax.core.contract import policy_error
from cqbjax.core.labels import OPTIMAL
from cqbjax.engine.progress import Reporter
from cqbjax.experiments import configs, grid, manifests
from cqbjax.experiments.configs import ComposedConfig, Config
from cqbjax.experiments.grid import PreparedPoint
from cqbjax.offline import OfflinePolicy
from cqbjax.results import store as results
from cqbjax.testing.fairness import check_fairness, permute_servers, run_isolated

# Seeds of the runs that find a policy's calls.
FEW = 2
PAGE, DERIVED = "index.html", "verified"
# Seeds that nobody knows before: how many, and the range they are drawn from.
SECRET, SECRET_RANGE = 10, (10_000_000, 2_000_000_000)
# With secret seeds the score may be lower by this much; more is an error at this p value.
LARGEST_LOSS, SIGNIFICANT = 0.1, 0.001
# Arrays of a point that differ between runs of the same code.
TIMINGS = ("seconds_per_round", "compile_seconds")


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

    def prepare(self, seeds: Sequence[int], composer: Composer) -> PreparedPoint:
        """Return its point, ready to run at consecutive seeds, with the task's own optimum."""
        values = {"first_seed": int(seeds[0]), "num_seeds": len(seeds)}
        ready = composer.prepare(self.config.with_values(values))
        own = (OPTIMAL, self.label)
        return ready._replace(policies={x: ready.policies[x] for x in own if x in ready.policies})


def verify(folder: Path, values: Mapping[str, str], composer: Composer) -> None:
    """Verify the entry in a folder, and print what was verified.

    Table and page are written again to its subfolder `verified`.

    Args:
        folder: folder of the entry.
        values: `samples` (how many run again), `seed` and `data_dir`.
        composer: composes and instantiates the tasks.

    Raises:
        ValueError: naming the first contradiction.
    """
    for name in (boards.NOTES, boards.NUMBERS, TABLE, PAGE):
        if not (folder / name).is_file():
            raise ValueError(f"{folder} is no entry of the arena: {name} is not there")
    rng = np.random.default_rng(int(values["seed"]) if values["seed"] else None)
    backend.configure()
    # The entry contains a copy of the policy's file.
    sys.path.insert(0, str(folder.resolve()))
    made, board = boards.read_board(folder), boards.read_board()
    samples, derived = list[RepeatedPolicy](), list[pl.DataFrame]()
    for task, note in made.notes.items():
        (stored,) = results.stored_points(folder / "data" / task, key=note["content"])
        seeds = range(note["first_seed"], note["first_seed"] + note["seeds"])
        wanted = {*note["policies"], OPTIMAL}
        labels = [label for label in stored.point.policy.values if label in wanted]
        point = stored.point.sel(policy=labels, seed=stored.point.seed.isin(seeds))
        # More seeds may be stored than the entry shows.
        config = configs.parse_yaml(stored.config).with_values({"num_seeds": point.sizes["seed"]})
        if values["data_dir"]:
            config = config.with_values({"data_dir": values["data_dir"]})
        _check_settings(task, note, config, folder, composer)
        derived.append(boards.tabulate_point(point, task))
        tested = [label for label in note["policies"] if label != OPTIMAL]
        samples += [RepeatedPolicy(task, label, point, config) for label in tested]
    by = ["task", "policy", "seed"]
    if not pl.concat(derived).sort(by).equals(made.rows.sort(by)):
        raise ValueError(f"{folder}: {boards.NUMBERS} does not follow from its arrays")
    _check_report(made, board, folder)
    print(f"{folder}: table and page follow from the stored arrays of {len(made.notes)} tasks")
    rows, checked = boards.add_known(made, board), set[str]()
    for number in rng.permutation(len(samples))[: int(values["samples"])]:
        sample = samples[number]
        if sample.label not in checked:
            policy = composer.make(sample.config.policy[sample.label])
            check_contestant(sample.label, policy, int(rng.integers(2**20)))
            checked.add(sample.label)
        _repeat(sample, rng, composer)
        print(f"{sample.task}, {sample.label}: run again, the same to the last bit")
        outcome = _run_secret_seeds(sample, rng, rows, composer)
        print(f"{sample.task}, {sample.label}: {outcome}")


def _check_settings(
    task: str, note: Mapping[str, Any], config: ComposedConfig, folder: Path, composer: Composer
) -> None:
    """Raise if a task's configuration is not the arena's, or its note not of the stored results.

    A task with fewer runs is printed.
    """
    (of_arena,) = select_tasks([task])
    whole = compose_task(of_arena, Request(), composer)
    sizes = {"num_seeds": config.num_seeds, "horizon": config.horizon}
    (point,) = grid.compose(whole.with_values(sizes))
    here, there = _list_settings(point.config), _list_settings(config)
    for key in {**here, **there}:
        if here.get(key) != there.get(key):
            raise ValueError(
                f"task {task} is not the arena's: it was run with {key}={there.get(key)}, and not "
                f"{here.get(key)}"
            )
    for key, size in sizes.items():
        if size < whole[key]:
            print(f"{task}: {key}={size}, and not {whole[key]}: a first look, not an entry")
    facts = {
        "version": of_arena.version, "seeds": config.num_seeds, "horizon": config.horizon,
        "first_seed": config.first_seed,
    }  # fmt: skip
    for key, value in facts.items():
        if note[key] != value:
            raise ValueError(
                f"{folder}: {boards.NOTES} has {key}={note[key]} for task {task}, and the stored "
                f"results {value}"
            )


def _list_settings(config: Config) -> dict[str, Any]:
    """Return the settings that determine a result, policies apart, with file names for paths."""

    def shorten(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: shorten(one) for key, one in value.items() if key != "data_dir"}
        return Path(value).name if isinstance(value, str) and "/" in value else value

    ignored = (*manifests.DISPLAY_KEYS, "policy", "rates_by_K", "grid")
    return {k: shorten(v) for k, v in configs.to_plain(config).items() if k not in ignored}


def _check_report(made: Board, board: Board, folder: Path) -> None:
    """Write table and page again, and raise if their text differs from the entry's."""
    labels = {label for note in made.notes.values() for label in note["policies"]} - {OPTIMAL}
    own = sorted(labels - {scores.RANDOM} or labels)
    entrant = own[0] if len(own) == 1 else None
    console = Console(file=io.StringIO())
    write_report(made, board, folder / DERIVED, entrant, console)
    for name in (TABLE, PAGE):
        # Without the pictures.
        there, here = (
            re.sub(r"data:image/png;base64,[^\"]*", "", (one / name).read_text()).splitlines()
            for one in (folder, folder / DERIVED)
        )
        for one, other in itertools.zip_longest(there, here, fillvalue="its end"):
            if one != other:
                raise ValueError(
                    f"{folder}: {name} does not follow from its arrays at {one.strip()[:60]}, or "
                    "was written by another version"
                )


def _repeat(sample: RepeatedPolicy, rng: np.random.Generator, composer: Composer) -> None:
    """Run a sample again, isolated from its callers, and raise if an array differs.

    Raises:
        ContractError: the policy's decisions depend on the true utilities.
    """
    seeds = sample.point.seed.values
    few, ready = (sample.prepare(some, composer) for some in (seeds[:FEW], seeds))
    policy = ready.policies[sample.label]
    trained = isinstance(policy, OfflinePolicy)

    def run(ready: PreparedPoint, policy: Any) -> xr.Dataset:
        one = ready._replace(policies={**ready.policies, sample.label: policy})
        (data,) = one.study_type.run([one], Reporter())
        return data

    runs = [functools.partial(run, one) for one in (few, ready)]
    if not trained and ready.spec is not None:
        problem = ready.spec.problem._replace(assortment_size=1, channels=1)
        if policy_error(policy, problem) is None:
            check_fairness(policy, int(rng.integers(2**20)), problem)
    again = runs[1](policy) if trained else run_isolated(policy, *runs)
    for name, array in sample.point.data_vars.items():
        for label in (OPTIMAL, sample.label):
            at = {"policy": label} if "policy" in array.dims else {}
            if name not in TIMINGS and not np.array_equal(
                array.sel(at), again[name].sel(at), equal_nan=True
            ):
                raise ValueError(
                    f"task {sample.task}, policy {label}: {name} differs when it is run again"
                )


def _run_secret_seeds(
    sample: RepeatedPolicy, rng: np.random.Generator, rows: pl.DataFrame, composer: Composer
) -> str:
    """Run a sample on secret seeds with permuted LLMs; return how its score changes.

    Args:
        sample: the policy in a task.
        rng: draws the seeds and the order of LLMs.
        rows: of the entry and the board, from `boards.add_known`.
        composer: prepares the task.

    Raises:
        ValueError: the policy does much worse: it recognises the reported runs.
    """
    from scipy.stats import ttest_ind

    first = int(rng.integers(*SECRET_RANGE))
    ready = sample.prepare(range(first, first + SECRET), composer)
    node = composer.compose([f"policy=[{scores.RANDOM}]"]).policy[scores.RANDOM]
    policies = {scores.RANDOM: composer.make(node), **ready.policies}
    how = f"{SECRET} secret seeds"
    if ready.spec is not None and not isinstance(policies[sample.label], OfflinePolicy):
        number = ready.spec.problem.num_servers
        # A rotation, so that every LLM of several gets another number.
        order = np.roll(np.arange(number), 1 + rng.integers(max(1, number - 1))).tolist()
        source = permute_servers(ready.spec.source, tuple(order))
        ready = ready._replace(spec=dataclasses.replace(ready.spec, source=source))
        how += " and permuted LLMs"
    (again,) = ready.study_type.run([ready._replace(policies=policies)], Reporter())
    there = boards.tabulate_point(again, sample.task)
    reported, secret = (_linearise_score(one, sample) for one in (rows, there))
    if reported is None or secret is None:
        return "without a score, since random routing has no gap"
    loss = float(reported.mean() - secret.mean())
    if loss > LARGEST_LOSS and not ttest_ind(reported, secret).pvalue >= SIGNIFICANT:
        raise ValueError(
            f"task {sample.task}, policy {sample.label} knows more than its feedback tells: with "
            f"{how} its score falls by {loss:.2f}"
        )
    return f"with {how} its score changes by {-loss:+.2f}"


def _linearise_score(rows: pl.DataFrame, sample: RepeatedPolicy) -> np.ndarray | None:
    """Return values by seed whose mean is the score, and whose spread includes random routing's.

    None if random routing has no gap. A ratio r of means is linearised: the value of a seed is
    1 - r - (gap - r random) / (mean of random).
    """
    own = rows.filter(task=sample.task).pivot("policy", index="seed", values="gap")
    gap, random = (own[label].to_numpy() for label in (sample.label, scores.RANDOM))
    if random.mean() <= 0:
        return None
    ratio = gap.mean() / random.mean()
    return np.asarray(1 - ratio - (gap - ratio * random) / random.mean())
