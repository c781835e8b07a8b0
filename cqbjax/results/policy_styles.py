"""Names, colours and line styles of policies in figures and tables."""

import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from cqbjax.core.labels import split_label

# Attributes of a scenario that extends the paper's.
OTHERWISE = ("arrivals", "source_settings", "drift", "users", "service")


class Style(NamedTuple):
    """Name and line style of a policy.

    Attributes:
        name: for figures and tables.
        color: colour of line, marker and band.
        dashes: line style of Matplotlib.
        marker: marker of Matplotlib; empty: no marker.
        width: width of the line in points.
        on_top: whether it is drawn over other lines, as the paper's policies are.
    """

    name: str
    color: str
    dashes: Any = "-"
    marker: str = ""
    width: float = 1.5
    on_top: bool = False


_DATA = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
# Name of a pattern of dashes -> line style of Matplotlib.
_DASHES = {name: (0, tuple(on_off)) for name, on_off in _DATA["dashes"].items()}
STYLE: dict[str, Style] = {
    label: Style(**own)._replace(dashes=(0, tuple(own["dashes"])) if "dashes" in own else "-")
    for label, own in _DATA["policies"].items()
}


def _add_rules(base: str, ending: str) -> Style:
    """Return the style of a base with a label's ending: other dashes, another shade."""
    _, rules = split_label(base + ending)
    words = ", ".join(_DATA["rules"][rule] for rule in rules.values())
    look = _DATA["endings"].get(ending, {"dashes": _DATA["dashes"]["long"], "mix": 0.2})
    # A share of white is mixed in, or of black if the share is negative.
    channels, share = (int(STYLE[base].color[i : i + 2], 16) for i in (1, 3, 5)), look["mix"]
    mixed = (round(one + abs(share) * (255 * (share > 0) - one)) for one in channels)
    color = "#" + "".join(f"{one:02X}" for one in mixed)
    return STYLE[base]._replace(
        name=f"{STYLE[base].name}, {words}", color=color, dashes=(0, tuple(look["dashes"])),
    )  # fmt: skip


# Tables sort by this order: routers follow all others, those with one rule together.
STYLE |= {
    router + ending: _add_rules(router, ending)
    for ending in _DATA["endings"]
    for router in ("zero", "knn", "mlp", "umr", "routerdc", "carrot", "logistic", "conditional")
}


def find_style(policy: str) -> Style:
    """Return a policy's style: from `STYLE`, or else one that depends on the label only.

    A base with a retry rule or a schedule has the base's colour, lighter or darker.
    """
    if policy in STYLE:
        return STYLE[policy]
    base, rules = split_label(policy)
    if rules and base in STYLE:
        return _add_rules(base, policy.removeprefix(base))
    number = zlib.crc32(policy.encode())
    colors, dashes = _DATA["others"], (_DASHES["dash_dot"], _DASHES["long"], "-")
    return Style(policy, colors[number % len(colors)], dashes[number // 8 % 3], "P")


def sort_policies(labels: Iterable[str]) -> list[str]:
    """Sort policies as in `STYLE`, user-defined ones last and by name."""
    known = list(STYLE)
    return sorted(labels, key=lambda x: (known.index(x) if x in STYLE else len(known), x))
