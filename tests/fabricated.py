"""Fabricated points: coupled birth-death queues with a service probability a policy."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import xarray as xr

from cqbjax.results import files
from cqbjax.results.files import StoredPoint

DIMS = ("policy", "arrival_rate", "seed", "round")
OPTIMAL_SERVICE = 0.8
# Service probability reached in the end, and the rounds that learning takes.
SKILL = {
    "optimal": (0.80, 1.0),
    "acqb": (0.78, 60.0),
    "acqb_cl": (0.785, 30.0),
    "acqb_fifo": (0.755, 80.0),
    "acqb_rr": (0.76, 80.0),
    "acqb_random": (0.75, 80.0),
    "acqb_ucb": (0.775, 70.0),
    "cqb_eps": (0.75, 140.0),
    "q_ths": (0.56, 500.0),
    "q_ucb": (0.55, 500.0),
    "random": (0.52, 1.0),
    "rand_rout": (0.54, 1.0),
    "zero": (0.62, 1.0),
    "knn": (0.66, 1.0),
    "mlp": (0.45, 1.0),
    "umr": (0.67, 1.0),
    "routerdc": (0.48, 1.0),
    "carrot": (0.68, 1.0),
}
# A study on data in place of the paper's.
SLICE: dict[str, Any] = {
    "experiment": "routerbench", "source": "RouterBench slice", "num_servers": 11,
    "stand_in": "a slice of 3,164 prompts [binary]",
    "provenance": "stand-in",
}  # fmt: skip


def fabricate(
    policies: Sequence[str] = ("acqb", "cqb_eps", "random"),
    rates: Sequence[float] = (0.7,),
    num_seeds: int = 8,
    horizon: int = 60,
    every: int = 1,
    **attributes: Any,
) -> xr.Dataset:
    """Simulate every policy on the same arrivals and service uniforms, as the simulator does."""
    attributes = {
        "experiment": "synthetic",
        "K": 1,
        "num_servers": 5,
        "dim": 5,
        "slackness": 0.03,
        "horizon": horizon,
        "source": "synthetic",
        "stand_in": "",
        "provenance": "paper",
        **attributes,
    }
    names = [*policies, "__optimal__"]
    runs = {name: _skill(name) for name in names}
    final = np.array([skill for skill, _ in runs.values()])[:, None, None]
    speed = np.array([rounds for _, rounds in runs.values()])[:, None, None]
    shape = (len(names), len(rates), num_seeds)
    queue, departed, regret = (np.zeros(shape) for _ in range(3))
    queues, departures, regrets = (np.zeros((*shape, horizon)) for _ in range(3))
    key = np.random.default_rng(7 + int(attributes["K"]))
    for t in range(horizon):
        arrival = key.random((1, 1, num_seeds)) < np.asarray(rates)[None, :, None]
        service = final - (final - 0.4) * np.exp(-t / speed)
        leaves = (key.random((1, 1, num_seeds)) < service) & (queue > 0)
        regret = regret + (OPTIMAL_SERVICE - service) * (queue > 0)
        queue, departed = queue - leaves + arrival, departed + leaves
        queues[..., t], departures[..., t], regrets[..., t] = queue, departed, regret
    recorded = np.arange(every, horizon + 1, every)
    return _point(policies, rates, recorded, queues, departures, regrets, attributes, every)


def _skill(name: str) -> tuple[float, float]:
    if name == "__optimal__":
        return SKILL["optimal"]
    return SKILL[name.removesuffix("_priority").replace("_explore", "")]


def _point(
    policies: Sequence[str],
    rates: Sequence[float],
    recorded: np.ndarray[Any, Any],
    queues: np.ndarray[Any, Any],
    departures: np.ndarray[Any, Any],
    regrets: np.ndarray[Any, Any],
    attributes: Mapping[str, Any],
    every: int,
) -> xr.Dataset:
    rounds_recorded = recorded - 1
    explored = np.broadcast_to(
        np.sqrt(recorded).astype(np.int32), (*queues[:-1].shape[:3], rounds_recorded.size)
    )
    seconds = 1e-6 * (1 + np.arange(len(policies)))
    return xr.Dataset(
        {
            "queue_length": (DIMS, queues[:-1][..., rounds_recorded].astype(np.int32)),
            "regret": (DIMS, regrets[:-1][..., rounds_recorded].astype(np.float32)),
            "departures": (DIMS, departures[:-1][..., rounds_recorded].astype(np.int32)),
            "explored": (DIMS, explored.copy()),
            "optimal_queue_length": (DIMS[1:], queues[-1][..., rounds_recorded].astype(np.int32)),
            "seconds_per_round": (DIMS[:1], seconds),
            "compile_seconds": (DIMS[:1], np.full(len(policies), 1.5)),
        },
        coords={
            "policy": list(policies),
            "arrival_rate": list(map(float, rates)),
            "seed": np.arange(queues.shape[2]),
            "round": ("round", recorded, {"thinned": f"every {every}-th round is recorded"}),
        },
        attrs=dict(attributes),
    )


def row_of(table: pl.DataFrame, **wanted: Any) -> dict[str, Any]:
    """Return the only row of a table with some values."""
    chosen = table.filter(*(pl.col(key) == value for key, value in wanted.items()))
    return chosen.row(0, named=True) if chosen.height == 1 else pytest.fail(f"{chosen}")


def save_point(point: xr.Dataset, manifest: Mapping[str, Any], config: str, path: Path) -> None:
    """Store a point by itself, by default under the name and key of its file."""
    fields = {"point": path.name, "key": str(path), "policies": {}, **manifest}
    files.write_file([StoredPoint(point, fields, config)], path)
