"""Where the cells of a figure stand, printed or on the page: a cell is a point at one rate."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

LETTERS = {"arrival_rate": "λ", "num_servers": "N", "slackness": "ε"}


class Cell(NamedTuple):
    """A point, by its number, at an arrival rate."""

    point: int
    rate: float


def arranged(
    settings: Sequence[Mapping[Any, Any]], rates: Sequence[Sequence[float]], keys: Sequence[str]
) -> list[list[Cell | None]]:
    """Lay cells into rows: by all but K and then by rate, with two values of K side by side.

    Args:
        settings: of each point, K among them.
        rates: of each point.
        keys: in which points differ.

    Returns:
        The rows, all of one length; None where a point has no such cell.
    """
    sizes = sorted({setting["K"] for setting in settings})
    beside = len(sizes) == 2
    by = [key for key in keys if key != "K"] if beside else ["K", *keys]
    rows: dict[tuple[Any, ...], list[Cell | None]] = {}
    for number in sorted(range(len(settings)), key=lambda i: _sortable(settings[i], ["K", *keys])):
        block = sizes.index(settings[number]["K"]) if beside else 0
        for rank, rate in enumerate(sorted(map(float, rates[number]))):
            place = (*_sortable(settings[number], by), rank)
            # Points alike in everything but the arrival rate: one more row each.
            while place in rows and rows[place][block] is not None:
                place = (*place[:-1], place[-1] + 1)
            rows.setdefault(place, [None] * (1 + beside))[block] = Cell(number, rate)
    return [rows[place] for place in sorted(rows)]


def _sortable(setting: Mapping[Any, Any], keys: Sequence[str]) -> tuple[Any, ...]:
    values = [setting.get(key, "") for key in keys]
    return tuple((1, value) if isinstance(value, str) else (0, value) for value in values)
