"""A sweep of 1,000 points as a user runs it, beside the time that its rounds take by themselves."""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.starting import timed
from cqbjax.core.labels import OPTIMAL

GRID = {
    "alpha_scale": [round(0.1 * i, 1) for i in range(1, 11)],
    "c1": [round(0.1 * i, 1) for i in range(1, 11)],
    "arrival_rate": [round(0.5 + 0.02 * i, 2) for i in range(10)],
}
SEEDS, HORIZON = 20, 1000
LABELS = ("acqb", OPTIMAL)


def rows(
    quick: bool, speeds: Mapping[str, float | None], composing: Callable[[Sequence[str]], float]
) -> Iterator[dict[str, Any]]:
    """Time the sweep, with empty caches and with the programs compiled.

    Args:
        quick: two values a key, and few rounds.
        speeds: rounds a second of ACQB and the optimal policy, by label, of this run.
        composing: takes the words of a sweep; returns the seconds in which it is composed and
            checked.

    Yields:
        A row for empty caches and one for full ones: `points`, `rounds` (that would run if points
        shared none), `seconds` of the whole process, `rounds_alone`, the seconds that so many
        rounds take at the throughput section's speeds, and `composing`.
    """
    seeds, horizon = (2, 40) if quick else (SEEDS, HORIZON)
    words = [f"{key}={','.join(map(str, of[: 2 if quick else None]))}" for key, of in GRID.items()]
    words += ["policy=[acqb]", f"num_seeds={seeds}", f"horizon={horizon}", "name=sweep"]
    points = (2 if quick else 10) ** len(GRID)
    each = points * seeds * horizon
    known = [speeds.get(label) for label in LABELS]
    alone = sum(each / speed for speed in known if speed) if all(known) else None
    composed = composing(words)
    with tempfile.TemporaryDirectory(prefix="bench_sweep_") as folder:
        for caches in ("cold", "warm"):
            place = f"results_dir={Path(folder) / caches}"
            seconds = timed(["run", "-m", *words, place], Path(folder) / "cache")
            yield {
                "caches": caches, "points": points, "rounds": each * len(LABELS),
                "seconds": seconds, "rounds_alone": alone, "composing": composed,
            }  # fmt: skip
