"""Choose the constants of the arena's policies: one budget and one measure, on the tuning seeds.

    python -m reproduction.arena_tuning FOLDER [DATA_DIR]

runs each setting of `arena_tuning.yaml` in every task of a family at the first `SEEDS` tuning
seeds, and writes `results/tables/arena_tuning.csv`. The measure is the arena's: the interquartile
mean of the score over seeds and tasks of the family. Each learner runs with its own rules, and on
real prompts also with another LLM on a retry and the least served query first, for which other
constants are best.
"""

import itertools
import sys
from pathlib import Path

import polars as pl
import yaml

from cqbjax.arena import scores, tasks
from cqbjax.arena.board import tabulate_point
from cqbjax.cli._compose import compose_jobs, initialize_hydra
from cqbjax.cli._instantiate import make
from cqbjax.core import backend
from cqbjax.engine.progress import show_progress
from cqbjax.experiments import display, loop
from cqbjax.results.index import ResultIndex
from cqbjax.results.tables import write_csv

TABLE = Path(__file__).parents[1] / "results" / "tables" / "arena_tuning.csv"
SEEDS, BUDGET = 10, 12
CACHE: dict[str, object] = {}  # sources and tables
REPLAY = "replay"  # tests schedules only, and its log is not part of the data
# Base -> key -> the values tried, each with each. All forms of ACQB use the constants of `acqb`.
GRIDS = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
# Whether on real prompts, and the rules that the learners have.
COMPOSITIONS = ((False, ""), (True, ""), (True, "_fallback_least_served"))


def run_setting(
    task: tasks.Task, label: str, setting: dict[str, float], folder: Path, data_dir: str
) -> pl.DataFrame:
    """Return the score of each run of a policy with some constants in a task."""
    composer = tasks.Composer(lambda words: compose_jobs([words])[0].config, make)
    words = [f"policy=[random,{label}]"]
    words += [f"policy.{label}.{key}={value}" for key, value in setting.items()]
    name = "-".join([task.name, label, *(f"{value:g}" for value in setting.values())])
    values = {"data_dir": data_dir} if data_dir else {}
    request = tasks.Request(tuning=True, seeds=SEEDS, folder=folder, values=values)
    ready = composer.prepare(tasks.compose_task(task, request, composer, words), CACHE)
    index = ResultIndex.of_study(folder / name, ready.point.config.name)
    left = loop.select_missing([ready], index)
    with show_progress() as progress:
        lost = loop.run_points(left, index, make, progress, display.make_console(), fail_fast=True)
    assert not lost, lost
    (point,) = loop.read_back([ready], index)
    return scores.add_scores(tabulate_point(point, task.name))


def tune(folder: Path, data_dir: str) -> pl.DataFrame:
    """Run all settings; return a row for each family, policy and setting, the best first."""
    rows = []
    for on_prompts, rules in COMPOSITIONS:
        family = [
            task for task in tasks.list_tasks()
            if task.on_prompts == on_prompts and task.name != REPLAY
        ]  # fmt: skip
        for base, grid in GRIDS.items():
            if base == "conditional" and not rules:  # it differs from others after a failure
                continue
            tried = itertools.product(*grid.values())
            settings = [dict(zip(grid, values, strict=True)) for values in tried]
            assert len(settings) == BUDGET
            made: list[list[pl.DataFrame]] = [[] for _ in settings]
            for task in family:  # one task at a time: its programs serve all settings
                for of_setting, setting in zip(made, settings, strict=True):
                    of_setting.append(run_setting(task, base + rules, setting, folder, data_dir))
            for of_setting, setting in zip(made, settings, strict=True):
                own = pl.concat(of_setting).filter(policy=base + rules)
                row = scores.aggregate_scores(own, [task.name for task in family]).to_dicts()[0]
                rows.append({
                    "family": "prompts" if on_prompts else "synthetic", "policy": base + rules,
                    "setting": " ".join(f"{key}={value:g}" for key, value in setting.items()),
                    "tasks": len(family), "seeds": SEEDS,
                    **{key: row[key] for key in ("iqm", "iqm_low", "iqm_high")},
                    "mean": own["score"].mean(),
                })  # fmt: skip
                print(rows[-1], flush=True)
    order = ["family", "policy", "iqm"]
    return pl.DataFrame(rows).sort(order, descending=[True, False, True])


if __name__ == "__main__":
    backend.configure()
    with initialize_hydra():
        write_csv(TABLE, tune(Path(sys.argv[1]), (sys.argv[2:] or [""])[0]))
