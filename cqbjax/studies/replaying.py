"""A study of schedules on a log of conversations: linked, replayed under each, stored and shown."""

import itertools
import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import xarray as xr
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from cqbjax.chains import prepare, rules
from cqbjax.chains.linking import Chains, Rule
from cqbjax.chains.prepare import Log
from cqbjax.chains.replay import replay
from cqbjax.core.files import content_key
from cqbjax.core.labels import OPTIMAL
from cqbjax.core.types import Policy
from cqbjax.policies import Optimal
from cqbjax.studies import grid, manifests, storing
from cqbjax.studies.grid import Point
from cqbjax.studies.settings import listed
from cqbjax.studies.sharding import UNFINISHED
from cqbjax.sweeping import checkpoint
from cqbjax.sweeping.parts import Part
from cqbjax.sweeping.progress import Reporter
from cqbjax.sweeping.sweep import part, sweep_parts

# A list in one of these is a grid.
RULE_KEYS = ("threshold", "min_gap", "among")
KEYS = (*RULE_KEYS, "source", "model", "encoder", "tokens", "schedules", "singles")
# Of a point's chains, shown in its rows of the table.
FOLLOWING = ("chains_of_several", "linked_by_cosine", "load")


class Linked(NamedTuple):
    """A point with its chains.

    Attributes:
        point: a combination of the grid.
        chains: linked by the point's rule.
        part: what the simulator is to run of it.
    """

    point: Point
    chains: Chains
    part: Part


def is_replay(config: DictConfig) -> bool:
    """Tell whether a configuration is of a replay."""
    return config.get("replay") is not None


def study(
    config: DictConfig, make_policies: Callable[[DictConfig], Mapping[str, Any]], folder: Path,
    progress: Reporter, console: Console, swept: Mapping[str, Any] | None = None,
) -> list[xr.Dataset]:  # fmt: skip
    """Check, run and store every point of a configuration.

    Points that are finished already are taken as they are, unless `rerun` says otherwise; one that
    was interrupted goes on from where it was last kept.

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
    policies = make_policies(config.policy)
    linked = [_linked(point, log, policies) for point in begun]
    for line in prepare.describe(log, linked[0].chains, _rule(begun[0].config)):
        console.print(line, markup=False, soft_wrap=True)
    stock = storing.Stock(folder, config.name)
    contents = [_content(one, log) for one in linked]
    for one, content in zip(linked, contents, strict=True):
        if not config.rerun and not stock.missing(one.point.name, content):
            console.print(f"{one.point.name} is stored: not run again", markup=False)
        elif config.dry_run:
            rounds = len(one.part.policies) * config.num_seeds * config.horizon
            console.print(f"{one.point.name}: {rounds:,} rounds of all runs", markup=False)
        else:
            _run_point(one, log, folder, content, progress)
    if config.dry_run:
        return []
    names = [one.point.name for one in linked]
    return storing.Stock(folder, config.name).read(names, contents)


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


def schedules(
    config: DictConfig, policies: Mapping[str, Policy], log: Log, chains: Chains
) -> dict[str, Policy]:
    """Return what is replayed, by label: the clairvoyant schedule as `optimal` before all others.

    Args:
        config: of the study: `replay.schedules` maps labels to rules.
        policies: label -> policy.
        log: a generated one knows the chances that the rule `informed` needs.
        chains: linked.

    Raises:
        ValueError: a label is taken twice, or there is no such rule.
    """
    chosen = {OPTIMAL: Optimal(), **policies}
    for label, rule in config.replay.schedules.items():
        if label in chosen:
            raise ValueError(f"replay.schedules.{label} has the label of a policy: give it another")
        if rule == "informed" and "planted" not in log.frame.columns:
            continue
        chosen[str(label)] = rules.policy(rule, log, chains, config.replay.singles)
    return chosen


def _rule(config: DictConfig) -> Rule:
    wanted = config.replay
    return Rule(float(wanted.threshold), float(wanted.min_gap), wanted.among)


def _linked(point: Point, log: Log, policies: Mapping[str, Policy]) -> Linked:
    """Link a point's chains, and check what is to be run on them."""
    config, seeds = point.config, grid.seeds(point.config)
    chains = prepare.link(log, _rule(config))
    (rate,) = config.arrival_rate
    source = replay(log, chains, seeds, rate, int(config.horizon), config.replay.singles)
    chosen = schedules(config, policies, log, chains)
    return Linked(
        point, chains,
        part(chosen, source, [rate], seeds, int(config.horizon), 1, config.record_every,
             config.capacity),
    )  # fmt: skip


def _run_point(
    one: Linked, log: Log, folder: Path, content: manifests.Content, progress: Reporter
) -> None:
    """Replay one point and store it."""
    begun, resume, config = time.perf_counter(), folder / UNFINISHED, one.point.config
    (data,) = sweep_parts(
        [one.part], config.chunk, config.memory_gb, progress=progress, resume=resume
    )
    data = data.assign_attrs(_attributes(one, log))
    seconds = time.perf_counter() - begun
    storing.store([manifests.Finished(one.point, content, data, seconds, {})], folder)
    shutil.rmtree(resume, ignore_errors=True)


def _attributes(one: Linked, log: Log) -> dict[str, Any]:
    """Return what is said of a point's log and of its chains."""
    config, share = one.point.config, one.point.config.replay.singles
    longer = one.chains.lengths[one.chains.lengths > 1]
    load = config.arrival_rate[0] * (share + (1 - share) * float(longer.mean()))
    following = zip(FOLLOWING, (len(longer), one.chains.similar, round(load, 3)), strict=True)
    return {
        "experiment": config.name, "source": log.name, "stand_in": log.stand_in, **dict(following)
    }  # fmt: skip


def _content(one: Linked, log: Log) -> manifests.Content:
    """Hash all that a point's numbers follow from: one hash, for its policies run together."""
    plain: Any = OmegaConf.to_container(one.point.config)
    plain["replay"].pop("source")  # the log is prepared from it, and counts itself
    words = json.dumps(manifests.computing(plain), sort_keys=True, default=str)
    labels = [label for label in one.part.policies if label != OPTIMAL]
    code = checkpoint.code(one.part.source, *one.part.policies.values())
    key = content_key(words, log.digest, code)
    return manifests.Content(key, dict.fromkeys(labels, key))


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
