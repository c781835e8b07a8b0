"""A study of schedules on a log of conversations: linked, replayed under each, stored and shown."""

import dataclasses
import itertools
import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from cqbjax.chains import instance, prepare, running
from cqbjax.chains.linking import Chains, Rule
from cqbjax.chains.prepare import Log
from cqbjax.chains.rules import Learning, Ranked, Scheduler
from cqbjax.core.files import content_key
from cqbjax.core.labels import OPTIMAL
from cqbjax.core.types import Policy
from cqbjax.policies import Acqb
from cqbjax.results import stored as results
from cqbjax.studies import grid, manifests, storing
from cqbjax.studies.grid import Point
from cqbjax.studies.settings import listed
from cqbjax.sweeping import checkpoint
from cqbjax.sweeping.progress import Reporter

# A list in one of these is a grid.
RULE_KEYS = ("threshold", "min_gap", "among")
KEYS = (*RULE_KEYS, "source", "model", "encoder", "tokens", "schedules", "singles", "segment")
# Of a point's chains, shown in its rows of the table.
FOLLOWING = ("chains_of_several", "linked_by_cosine", "load")
# The keys of a configuration that numbers follow from.
COMPUTING = (
    "policy", "replay", "arrival_rate", "num_seeds", "first_seed", "horizon", "record_every",
)  # fmt: skip


class Linked(NamedTuple):
    """A point with its chains.

    Attributes:
        point: a combination of the grid.
        chains: linked by the point's rule.
        runs: its arrivals, one run a seed.
    """

    point: Point
    chains: Chains
    runs: instance.Run


def is_replay(config: DictConfig) -> bool:
    """Tell whether a configuration is of a replay."""
    return config.get("replay") is not None


def study(
    config: DictConfig, make_policies: Callable[[DictConfig], Mapping[str, Any]], folder: Path,
    progress: Reporter, console: Console, swept: Mapping[str, Any] | None = None,
) -> list[xr.Dataset]:  # fmt: skip
    """Check, run and store every point of a configuration.

    Points that are finished already are taken as they are, unless `rerun` says otherwise; one that
    was interrupted goes on from its last segment.

    Args:
        config: of the study; `config.replay` says which log and which rule.
        make_policies: makes policies, by label.
        folder: of the experiment.
        progress: told of compiling and slots.
        console: told of the log.
        swept: key -> value, what tells this configuration from others of its sweep.

    Returns:
        The stored points, read back.

    Raises:
        ValueError: in one sentence, for anything out of range, before the first point runs.
    """
    begun = points(config, swept or {})
    log = read_log(config)
    cut = running.plan(int(config.horizon), config.record_every, begun[0].config.replay.segment)
    chosen = schedulers(config, make_policies(config.policy), log)
    linked = [_linked(point, log, cut) for point in begun]
    for line in prepare.describe(log, linked[0].chains, _rule(begun[0].config)):
        console.print(line, markup=False, soft_wrap=True)
    stock = storing.Stock(folder, config.name)
    for one in linked:
        content = _content(one.point, log, chosen)
        if not config.rerun and not stock.missing(one.point.name, content):
            console.print(f"{one.point.name} is stored: not run again", markup=False)
        elif config.dry_run:
            slots = (1 + len(chosen)) * config.num_seeds * cut.horizon
            console.print(f"{one.point.name}: {slots:,} slots and runs", markup=False)
        else:
            _run_point(one, log, chosen, cut, folder, content, progress)
    if config.dry_run:
        return []
    return storing.read([one.point.name for one in linked], folder)


def points(config: DictConfig, swept: Mapping[str, Any]) -> list[Point]:
    """Return the points of a configuration: one for each combination of the rule's lists.

    Raises:
        ValueError: a key of `replay` is unknown, or has a value that it may not have.
    """
    for key in config.replay:
        if key not in KEYS:
            raise ValueError(f"replay.{key} is no key; replay has {', '.join(KEYS)}")
    values = {key: listed(config.replay[key]) for key in RULE_KEYS}
    several = {key: some for key, some in values.items() if len(some) > 1}
    made = []
    for chosen in itertools.product(*values.values()):
        rule = dict(zip(values, chosen, strict=True))
        one = OmegaConf.merge(config, {"replay": rule})
        assert isinstance(one, DictConfig)
        _rule(one).check()
        varied = {key: rule[key] for key in several}
        (point,) = grid.compose(one, {**swept, **varied})
        if len(point.config.arrival_rate) != 1:
            raise ValueError("arrival_rate must be one number of chains a slot for a replay")
        made.append(point)
    return made


def read_log(config: DictConfig) -> Log:
    """Return the log of a study: prepared from `replay.source` where it is given."""
    data_dir, wanted = Path(config.data_dir), config.replay
    if wanted.source is not None:
        prepare.prepare(data_dir, Path(wanted.source), wanted.model, wanted.encoder, wanted.tokens)
    return prepare.load(data_dir)


def schedulers(
    config: DictConfig, policies: Mapping[str, Policy], log: Log
) -> dict[str, Scheduler]:
    """Return what is replayed besides the clairvoyant schedule, by label.

    Args:
        config: of the study: `replay.schedules` maps labels to rules.
        policies: label -> policy; `optimal` stands for the clairvoyant schedule.
        log: a generated one knows the chances that the rule `informed` needs.

    Raises:
        ValueError: a label is taken twice.
    """
    chosen: dict[str, Scheduler] = {}
    for label, policy in policies.items():
        if label == OPTIMAL:
            continue
        if isinstance(policy, Acqb) and policy.estimator == "auto":
            # A chain's state changes while it waits: there is no table of contexts, which the
            # other estimator needs.
            policy = dataclasses.replace(policy, estimator="running")
        chosen[label] = Learning(policy=policy)
    for label, by in config.replay.schedules.items():
        if label in chosen or label == OPTIMAL:
            raise ValueError(f"replay.schedules.{label} has the label of a policy: give it another")
        if by == "informed" and "planted" not in log.frame.columns:
            continue
        rule = Ranked(by=by)
        rule.check(running.replay.problem(int(config.horizon)))
        chosen[str(label)] = rule
    return chosen


def _rule(config: DictConfig) -> Rule:
    wanted = config.replay
    return Rule(float(wanted.threshold), float(wanted.min_gap), wanted.among)


def _linked(point: Point, log: Log, cut: running.Plan) -> Linked:
    """Link a point's chains and draw its arrivals."""
    config = point.config
    chains = prepare.link(log, _rule(config))
    arrivals = instance.root_arrivals(log, chains)
    runs = [
        instance.draw_run(
            seed, arrivals, chains, config.arrival_rate[0], cut.horizon, config.replay.singles
        )
        for seed in grid.seeds(config)
    ]
    return Linked(point, chains, instance.stacked(runs))


def _run_point(
    one: Linked, log: Log, chosen: Mapping[str, Scheduler], cut: running.Plan, folder: Path,
    content: manifests.Content, progress: Reporter,
) -> None:  # fmt: skip
    """Replay one point and store it."""
    begun, resume = time.perf_counter(), folder / ".unfinished"
    tables = instance.tables(log, one.chains, one.point.config.replay.singles)
    replayed = running.run(chosen, tables, one.runs, cut, resume, progress)
    data = dataset(replayed, one, log, cut)
    seconds = time.perf_counter() - begun
    storing.store([manifests.Finished(one.point, content, data, seconds, {})], folder)
    shutil.rmtree(resume, ignore_errors=True)


def dataset(
    replayed: Mapping[str, running.Replayed], one: Linked, log: Log, cut: running.Plan
) -> xr.Dataset:
    """Return results as those of a sweep: one arrival rate, and no regret with one server."""
    labels = list(replayed)
    config = one.point.config

    def stacked(field: str) -> np.ndarray:
        return np.stack([np.asarray(getattr(each.totals, field)) for each in replayed.values()])

    lengths = stacked("queue_length")[:, None]
    values: dict[str, Any] = {
        "queue_length": lengths,
        "regret": np.zeros(lengths.shape, np.float32),
        "departures": stacked("departures")[:, None],
        "explored": stacked("explored")[:, None],
        "optimal_queue_length": lengths[labels.index(OPTIMAL)],
        "seconds_per_round": np.array([each.seconds_per_round for each in replayed.values()]),
        "compile_seconds": np.array([each.compile_seconds for each in replayed.values()]),
    }
    coordinates = {
        "policy": labels, "arrival_rate": list(config.arrival_rate),
        "seed": list(grid.seeds(config)), "round": np.arange(cut.every, cut.horizon + 1, cut.every),
    }  # fmt: skip
    longer = one.chains.lengths[one.chains.lengths > 1]
    share = config.replay.singles
    attributes: dict[str, Any] = {
        "experiment": config.name, "source": log.name, "stand_in": log.stand_in, "K": 1,
        "num_servers": 1, "horizon": cut.horizon,
    }  # fmt: skip
    load = config.arrival_rate[0] * (share + (1 - share) * float(longer.mean()))
    attributes |= zip(FOLLOWING, (len(longer), one.chains.similar, round(load, 3)), strict=True)
    variables = {name: (results.VARIABLES[name], value) for name, value in values.items()}
    return xr.Dataset(variables, coordinates, attributes)


def _content(point: Point, log: Log, chosen: Mapping[str, Scheduler]) -> manifests.Content:
    """Hash all that a point's numbers follow from: one hash, for its policies run together."""
    computing: Any = OmegaConf.to_container(OmegaConf.masked_copy(point.config, list(COMPUTING)))
    computing["replay"].pop("source")
    words = json.dumps(computing, sort_keys=True, default=str)
    key = content_key(words, log.digest, checkpoint.code(*chosen.values()))
    return manifests.Content(key, dict.fromkeys(chosen, key))


def show(
    points: Sequence[xr.Dataset], config: DictConfig, stem: str, console: Console
) -> list[Path]:
    """Draw the figure and the table of stored points, and print the table.

    The paper's numbers stand beside ours though the log may be another: the table says which it is.

    Args:
        points: from `study`.
        config: of the study.
        stem: file name without ending, below `figures/` and `tables/` of `results_dir`.
        console: where the table is printed.

    Returns:
        The files written.
    """
    from cqbjax.figures import curves, sweeps
    from cqbjax.figures import files as figure_files
    from cqbjax.paper import printed
    from cqbjax.results import tables
    from cqbjax.results.metrics import panels_of

    horizon = min(int(point.attrs["horizon"]) for point in points)
    rounds = sorted({min(int(t), horizon) for t in config.table_rounds})
    title, root = config.title or config.name, Path(config.results_dir)
    made = tables.gap_table(points, rounds, config.compared)
    sources = {str(point.attrs["source"]): prepare.TITLE for point in points}
    made = printed.beside(made, sources)
    written = list(tables.save_table(made, root / "tables" / stem, title))
    tables.print_table(made, title, console)
    if len(points) == 1:
        figure = curves.draw_curves(points, panels_of(points, config), config.spread)
    else:
        # What follows from a point's rule is no key of the sweep.
        swept = [
            point.drop_attrs(deep=False).assign_attrs(
                {key: value for key, value in point.attrs.items() if key not in FOLLOWING}
            )
            for point in points
        ]
        figure = sweeps.draw_over_keys(swept, "gap")
    return [*written, *figure_files.save(figure, root / "figures" / stem)]
