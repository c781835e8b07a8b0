"""What Lemma 8 and its proof say of the switching queues, counted over sample paths.

A sentence of the paper is a rule: where it applies, and where it fails. Two readings of the lemma
are kept apart. As printed, the departures that decide the sign of psi(i, t) are those of round t;
in the proof they are those of round i, in which the two processes part.
"""

from typing import NamedTuple

import numpy as np
import polars as pl
import xarray as xr

from cqbjax.results.summaries import mean_ci
from reproduction.theory.switching import Switching

# States that the proof reaches from each case: S_0 and S_1 where the optimal policy alone served a
# query in round i; S_0, S_2 and S_3 where both did or none.
AFTER_PARTING, AFTER_AGREEING = (0, 1), (0, 2, 3)


class Pairs(NamedTuple):
    """Neighbouring processes Q_i and Q_{i-1}, i = 1 .. T: what the rules are about.

    Attributes:
        psi: [S, T, T + 1] int8 psi(i, t) = Q(i, t) - Q(i-1, t), t = 1 .. T + 1.
        parted: [S, T] bool D(i, i) = 0 and D(i-1, i) = 1.
        against: [S, T] bool D(i, i) = 1 and D(i-1, i) = 0, which the coupling rules out.
        later: [T, T + 1] bool t > i, where psi can differ from 0.
    """

    psi: np.ndarray
    parted: np.ndarray
    against: np.ndarray
    later: np.ndarray


def pairs(made: Switching) -> Pairs:
    """Return the neighbours of every sample path.

    Args:
        made: from `switching.run`.
    """
    length = made.length.astype(np.int32)
    psi = (length[:, 1:] - length[:, :-1]).astype(np.int8)
    horizon = made.departed.shape[-1]
    at = np.arange(horizon)
    own, other = made.departed[:, at + 1, at], made.departed[:, at, at]
    later = np.arange(1, horizon + 2) > (at + 1)[:, None]
    return Pairs(psi, ~own & other, own & ~other, later)


def counted(made: Switching, queue: np.ndarray, optimal: np.ndarray) -> xr.Dataset:
    """Count, path by path, how often each sentence applies and how often it fails.

    Args:
        made: from `switching.run`.
        queue: [S, T + 1] Q(t) of the policy, run by itself, for t = 1 .. T + 1.
        optimal: [S, T + 1] Q*(t), likewise.

    Returns:
        Over seed (0 .. S - 1) and rule: `checked` and `failed`, numbers of (i, t), of t or of i;
        over seed and switch i = 1 .. T: `psi` = psi(i, T + 1), `parted`, whether D(i, i) = 0 and
        D(i-1, i) = 1, and `gap` of round i.
    """
    both = pairs(made)
    checks = _checks(made, both, queue, optimal)
    paths, horizon = made.gap.shape
    counts = [
        [each.reshape(paths, -1).sum(axis=1, dtype=np.int64) for each in (where, where & wrong)]
        for where, wrong in checks.values()
    ]
    checked, failed = (np.stack(each, axis=1) for each in zip(*counts, strict=True))
    return xr.Dataset(
        {
            "checked": (("seed", "rule"), checked),
            "failed": (("seed", "rule"), failed),
            "psi": (("seed", "switch"), both.psi[:, :, -1]),
            "parted": (("seed", "switch"), both.parted.astype(np.int8)),
            "gap": (("seed", "switch"), made.gap),
        },
        {"seed": np.arange(paths), "rule": list(checks), "switch": np.arange(1, horizon + 1)},
    )


def _checks(
    made: Switching, both: Pairs, queue: np.ndarray, optimal: np.ndarray
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return sentence -> where it applies, and where it would be wrong if it did."""
    psi, parted = both.psi, both.parted[:, :, None] & both.later
    agreed = ~both.parted[:, :, None] & both.later
    own, other = made.departed[:, 1:], made.departed[:, :-1]
    # As printed: psi(i, t) with the departures of round t, known for t <= T.
    now, before = psi[:, :, :-1], both.later[None, :, :-1]
    length, state = made.length[:, 1:], made.state[:, 1:]
    emptied = np.maximum.accumulate(parted & (length == 0), axis=2)
    return {
        "psi(i, t) is -1, 0 or 1": (np.ones_like(psi, bool), np.abs(psi) > 1),
        "the sum of psi(i, t) over i is Q(t) - Q*(t)": (
            np.ones_like(queue, bool), psi.sum(axis=1, dtype=np.int32) != queue - optimal
        ),
        "D(i, i) <= D(i-1, i)": (np.ones_like(both.parted), both.against),
        "D(i, i) = 0, D(i-1, i) = 1: psi is 0 or 1": (parted, psi < 0),
        "D(i, i) = D(i-1, i): psi is -1 or 0": (agreed, psi > 0),
        "as printed, D(i, t) = 0, D(i-1, t) = 1: psi is 0 or 1": (~own & other & before, now < 0),
        "as printed, D(i, t) = D(i-1, t): psi is -1 or 0": ((own == other) & before, now > 0),
        "the pair is in a state of the proof": (np.ones_like(psi, bool), state > max(range(5))),
        "D(i, i) = 0, D(i-1, i) = 1: S_0 or S_1": (parted, ~np.isin(state, AFTER_PARTING)),
        "D(i, i) = D(i-1, i): S_0, S_2 or S_3": (agreed, ~np.isin(state, AFTER_AGREEING)),
        "parted, and Q_i was empty since: psi is 0": (emptied, psi != 0),
        "sketch: parted, Q_{i-1} empty: Q_i empty": (
            parted & (made.length[:, :-1] == 0), length != 0
        ),
    }  # fmt: skip


def rules(paths: xr.Dataset) -> pl.DataFrame:
    """Tabulate how often each sentence applies and how often it fails.

    Args:
        paths: from `counted`.

    Returns:
        A row a sentence: `rule`, `checked` and `failed`, numbers of (path, i, t), of (path, t) or
        of (path, i), and `paths_failed`, of how many sample paths.
    """
    checked, failed = (
        paths[name].transpose("seed", "rule").values for name in ("checked", "failed")
    )
    return pl.DataFrame({
        "rule": [str(rule) for rule in paths["rule"].values], "checked": checked.sum(axis=0),
        "failed": failed.sum(axis=0), "paths_failed": (failed > 0).sum(axis=0),
    })  # fmt: skip


def by_switch(paths: xr.Dataset, block: int) -> pl.DataFrame:
    """Average what round i leaves behind at the end, in blocks of consecutive i.

    Args:
        paths: from `counted`.
        block: rounds in a block; the last one may be shorter.

    Returns:
        A row a block: its `first` and `last` round, and the mean over paths with its 95% interval
        (_low, _high) of `psi` = psi(i, T + 1), of `longer` and `shorter`, how often that is 1 and
        -1, of `chance`, R(x*, S*) - R(x_i, S_i) that Q_i and Q_{i-1} part in round i, and
        of `parted`, how often they did; and `e`, sqrt(E[gap^2]).
    """
    end, gap, parted = (
        paths[name].transpose("seed", "switch").values for name in ("psi", "gap", "parted")
    )
    values = {"psi": end, "longer": end > 0, "shorter": end < 0, "chance": gap, "parted": parted}
    horizon = end.shape[1]
    rows: list[dict[str, float]] = []
    for first in range(0, horizon, block):
        here = slice(first, min(first + block, horizon))
        row: dict[str, float] = {"first": first + 1, "last": here.stop}
        for name, of in values.items():
            mean = of[:, here].astype(float).mean(axis=1)
            share = name in ("longer", "shorter", "parted")
            interval = mean_ci(xr.DataArray(mean, dims="seed"), share=share)
            row |= {name: float(interval["mean"]), f"{name}_low": float(interval["low"])}
            row[f"{name}_high"] = float(interval["high"])
        row["e"] = float(np.sqrt(np.mean(gap[:, here].astype(float) ** 2)))
        rows.append(row)
    return pl.DataFrame(rows)
