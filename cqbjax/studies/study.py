"""The points of a study: checked, trained, run.

Composing them (`grid.py`), running all of them shard by shard (`sharding.py`), storing
(`storing.py`, `manifests.py`) and showing (`showing.py`) are apart.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from omegaconf import DictConfig, OmegaConf

from cqbjax.core.recorders import Recorder
from cqbjax.core.types import Policy, Source
from cqbjax.datasets import DatasetSource
from cqbjax.offline import Learnt, Trained, fits, training
from cqbjax.sources import Synthetic
from cqbjax.studies.arriving import queries, settings_of, told
from cqbjax.studies.grid import Point, Ready, compose, seeds, settle
from cqbjax.studies.grid import told as told_of_grid
from cqbjax.sweeping.checks import (
    check_batch,
    check_recorders,
    check_sweep,
    named,
    with_yardstick,
)
from cqbjax.sweeping.parts import Part, PerSeed, choose_records
from cqbjax.sweeping.progress import Reporter
from cqbjax.sweeping.runner import Estimate
from cqbjax.sweeping.sweep import estimates, part, sweep_parts


def check_point(ready: Ready) -> None:
    """Refuse what a point cannot run, before anything is trained or compiled.

    Args:
        ready: a settled point, with all that is made of its configuration.

    Raises:
        ValueError: in one sentence, for anything out of range.
    """
    point, source, policies, recorders, *_ = ready
    config, learnt = point.config, _learnt(policies)
    if learnt and not isinstance(source, DatasetSource):
        label = next(iter(learnt))
        raise ValueError(f"policy {label} learns from a dataset's offline split: pick a source")
    drawn = drawn_from(ready)
    wanted = with_yardstick(policies)
    others = {label: policy for label, policy in wanted.items() if label not in learnt}
    problem = check_sweep(
        others, drawn, config.arrival_rate, np.asarray(seeds(config)),
        config.horizon, config.K, config.capacity,
    )  # fmt: skip
    check_recorders(recorders, problem)
    check_batch(config.chunk, config.memory_gb)
    for policy in learnt.values():
        policy.check(problem)
    first = choose_records(config.horizon, config.record_every).every
    if min(config.table_rounds) < min(first, config.horizon):
        raise ValueError(
            f"table_rounds={config.table_rounds} must not lie before round {first}, the first one "
            "recorded: raise it, or lower record_every"
        )


def drawn_from(ready: Ready) -> Source:
    """Return what a point's sweep draws from."""
    return queries(ready.point.config, ready.source, ready.users, ready.service)


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


def estimated(ready: Sequence[Ready], progress: Reporter | None = None) -> list[Estimate]:
    """Reckon what running points would take; nothing is trained, and nothing stored.

    Args:
        ready: checked points, their policies untrained.
        progress: told what is being done.
    """
    config = ready[0].point.config
    parts = [_part(_blank(each)) for each in ready]
    return estimates(parts, config.chunk, config.memory_gb, None, progress)


def _blank(ready: Ready) -> Ready:
    """Return a point with policies of the right shapes in place of those that are to be trained."""
    config, each = ready.point.config, dict(ready.policies)
    problem = drawn_from(ready).problem(config.K, config.horizon)
    for label, policy in _learnt(each).items():
        each[label] = PerSeed([policy.blank(problem)] * config.num_seeds)
    return ready._replace(policies=each)


def _part(trained: Ready) -> Part:
    """Return what the simulator is to run of a point."""
    config = trained.point.config
    return part(
        trained.policies, drawn_from(trained),
        config.arrival_rate, seeds(config), config.horizon, config.K, config.record_every,
        config.capacity, trained.recorders,
    )  # fmt: skip


def _origin(trained: Ready) -> dict[str, Any]:
    """Return the attributes that say where a point's queries come from."""
    source, config = trained.source, trained.point.config
    own = told(config)
    if isinstance(source, DatasetSource):
        return {"source": source.table.name, "stand_in": source.table.stand_in, **own}
    if type(source) is Synthetic:
        slackness = float(config.slackness)
        return {"source": "synthetic", "stand_in": "", "slackness": slackness, **own}
    # A source of one's own has its module in its name, so that it is never taken for the paper's.
    kind = type(source)
    own_name = f"{kind.__module__}.{kind.__qualname__}"
    name = kind.__name__ if own_name.startswith("cqbjax.") else own_name
    values = told_of_grid(settings_of(config.source))
    return {"source": name, "stand_in": "", "source_settings": values, **own}


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
        make_source: makes a source, or a recorder, of its configuration.
        make_policies: makes policies, by label.
        swept: key -> value, what tells this configuration from others of its sweep.
        sources: those made before, by their configurations; new ones are added.

    Raises:
        ValueError: in one sentence, for anything out of range at any point.
    """
    ready: list[Ready] = []
    sources = {} if sources is None else sources
    for point in compose(config, swept or {}):
        source = source_of(point, make_source, sources)
        policies = make_policies(point.config.policy)
        point = settle(point, source)
        one = ready_of(point, source, policies, make_source)
        check_point(one)
        ready.append(one)
    return ready


def ready_of(
    point: Point,
    source: Source | DatasetSource,
    policies: Mapping[str, Policy | Learnt],
    make: Callable[[DictConfig], Any],
) -> Ready:
    """Return a settled point with what is made of its configuration, by `make`."""
    config = point.config
    users, service = (tuple(map(make, config[key].values())) for key in ("users", "service"))
    return Ready(point, source, policies, recorders_of(point, make), users, service)


def recorders_of(point: Point, make: Callable[[DictConfig], Any]) -> tuple[Recorder, ...]:
    """Return what a point asks to be recorded, made of its configuration."""
    asked = [*point.config.record, *(["queries"] if point.config.queries else [])]
    return tuple(named(one) if isinstance(one, str) else make(one) for one in asked)


def source_of(
    point: Point, make_source: Callable[[DictConfig], Any], sources: dict[str, Any]
) -> Source | DatasetSource:
    """Return a point's source, made once: the points of a dataset share one table.

    Args:
        point: of a study.
        make_source: makes a source of its configuration.
        sources: those made before, by their configurations; a new one is added.
    """
    key = str(OmegaConf.to_container(point.config.source))
    if key not in sources:
        sources[key] = make_source(point.config.source)
    made: Source | DatasetSource = sources[key]
    return made


def told_of(ready: Ready) -> Iterator[str]:
    """Yield what a point leaves out, and what is known of its dataset."""
    point, source = ready.point, ready.source
    for reason in sorted(set(point.left_out.values())):
        names = ", ".join(label for label, why in point.left_out.items() if why == reason)
        yield f"{point.name}: {names} left out ({reason})"
    if isinstance(source, DatasetSource):
        yield source.describe(point.config.K, point.config.arrival_rate)
