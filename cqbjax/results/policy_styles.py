"""Names, colours and line styles of policies in figures and tables."""

import zlib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from cqbjax.core.labels import OPTIMAL, split_label

# Attributes of a scenario that extends the paper's.
OTHERWISE = ("arrivals", "source_settings", "drift", "users", "service")


class Style(NamedTuple):
    """Name and line style of a policy.

    Attributes:
        name: as in the paper.
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


_DASH, _LONG, _DOT, _DASH_DOT = (0, (4, 1.5)), (0, (8, 2)), (0, (1, 1.2)), (0, (5, 1.5, 1, 1.5))

# Colours after Okabe and Ito, and Tol (muted), both made for colour-blind readers; policies that
# share a hue differ in dashes or markers.
STYLE: dict[str, Style] = {
    OPTIMAL: Style("Optimal", "#000000", _DOT, width=1.4),
    "acqb_cl": Style("ACQB-CL", "#D55E00", width=2.0, on_top=True),
    "acqb": Style("ACQB", "#0072B2", width=2.0, on_top=True),
    "acqb_intercept": Style("ACQB + intercept", "#AA4499", _DASH, width=2.0),
    "acqb_windowed": Style("ACQB, windowed", "#009E73", width=2.0, on_top=True),
    "acqb_mixed": Style("ACQB, mixed K", "#44AA99", _LONG, width=2.0),
    "acqb_fallback": Style("ACQB, no repeats", "#0072B2", _DASH, width=2.0),
    "acqb_posterior": Style("ACQB + own failures", "#0072B2", _DOT, width=2.0),
    "acqb_recall": Style("ACQB + recall", "#0072B2", _DASH_DOT, width=2.0),
    "acqb_warm_recall": Style("ACQB from logs + recall", "#CC3311", _DASH, width=2.4, on_top=True),
    "acqb_cl_fallback": Style("ACQB-CL, no repeats", "#D55E00", _DASH, width=2.0),
    "acqb_cl_posterior": Style("ACQB-CL + own failures", "#D55E00", _DOT, width=2.0),
    "acqb_warm": Style("ACQB from logs", "#AA4499", width=2.0, on_top=True),
    "acqb_warm_fallback": Style("ACQB from logs, no repeats", "#AA4499", _LONG, width=2.0),
    "acqb_warm_posterior": Style(
        "ACQB from logs + own failures", "#CC3311", width=2.4, on_top=True
    ),
    "acqb_ucb": Style("ACQB-UCB", "#56B4E9", _LONG),
    "acqb_fifo": Style("ACQB-FIFO", "#E69F00", _LONG),
    "acqb_rr": Style("ACQB-RR", "#CC79A7", _DASH),
    "acqb_random": Style("ACQB-RAND", "#882255", _DASH_DOT),
    "acqb_explore_fifo": Style("Explore-FIFO", "#E69F00", _DASH),
    "acqb_explore_lifo": Style("Explore-LIFO", "#009E73", _LONG),
    "acqb_explore_rr": Style("Explore-RR", "#CC79A7", _DASH_DOT),
    "acqb_explore_random": Style("Explore-RAND", "#882255", _DOT),
    "informed": Style("knows each chance", "#009E73", _DOT, width=2.0),
    "fifo": Style("FIFO", "#E69F00"),
    "fifo_chain": Style("FIFO by chain", "#E69F00", _DOT),
    "rr": Style("RR", "#CC79A7"),
    "sjf": Style("SJF", "#661100"),
    "best_llm": Style("best LLM", "#997700"),
    "best_llm_fallback": Style("best LLM, then the next", "#997700", _DASH),
    "best_llm_cache": Style("best LLM + cache", "#997700", _DOT),
    "thompson": Style("Thompson by LLM", "#999933"),
    "greedy": Style("Greedy by LLM", "#999933", _LONG),
    "linucb": Style("LinUCB", "#44AA99"),
    "lints": Style("LinTS", "#44AA99", _DASH),
    "cqb_eps": Style("CQB-ε", "#009E73", _DASH),
    "q_ths": Style("Q-ThS", "#999933", _DASH_DOT),
    "q_ucb": Style("Q-UCB", "#661100", _DASH),
    "random": Style("RAND", "#777777"),
    "rand_rout": Style("RAND_ROUT", "#777777", _DASH),
    "rand_rout_fallback": Style("RAND_ROUT (fallback)", "#777777", _DOT),
    "zero": Style("ZERO", "#000000", marker="o"),
    "knn": Style("KNN", "#E69F00", marker="s"),
    "mlp": Style("MLP", "#CC79A7", marker="^"),
    "umr": Style("UMR", "#56B4E9", marker="v"),
    "routerdc": Style("RouterDC", "#882255", marker="D"),
    "carrot": Style("CARROT", "#332288", marker="X"),
    "logistic": Style("Logistic", "#117733", marker="P"),
}
# Retry rules and queue rules in the words of a legend.
_WORDS = {
    "fallback": "fallback", "posterior": "own failures", "recall": "recall", "cache": "cache",
    "oldest": "oldest first", "newest": "newest first", "least_served": "least served",
    "random": "random query", "joint": "priority",
}  # fmt: skip
# Ending of a label, with a retry rule or a schedule -> dashes of its line.
_DASHES = {
    "_fifo": (0, (12, 2)),
    "_lifo": (0, (3, 4)),
    "_random": (0, (1, 5)),
    "_least_served": _DOT,
    "_priority": _DASH,
    "_fallback": (0, (2, 1)),
    "_fallback_least_served": (0, (3, 1, 1, 1)),
    "_fallback_priority": (0, (6, 1)),
    "_posterior": _LONG,
    "_posterior_least_served": _DASH_DOT,
    "_posterior_priority": (0, (8, 1, 2, 1)),
    "_recall": (0, (4, 1, 1, 1, 1, 1)),
    "_recall_least_served": (0, (10, 1)),
    "_recall_priority": (0, (1, 3)),
    "_cache": (0, (5, 2, 1, 2, 1, 2)),
    "_cache_least_served": (0, (2, 2)),
    "_cache_priority": (0, (7, 3)),
}
# Colours of user-defined policies, chosen by their labels.
_OTHERS = ("#44AA99", "#117733", "#DDCC77", "#6699CC", "#994455", "#997700", "#004488")


def describe_rules(rules: Mapping[str, str]) -> str:
    """Return the rules of a label, from `split_label`, in words."""
    return ", ".join(_WORDS[rule] for rule in rules.values())


def _add_rules(base: str, ending: str) -> Style:
    """Return the style of a base with the rules of a label's ending: only the dashes differ."""
    _, rules = split_label(base + ending)
    name = f"{STYLE[base].name} ({describe_rules(rules)})"
    return STYLE[base]._replace(name=name, dashes=_DASHES.get(ending, _LONG))


# Tables sort by this order: routers follow all others, those with one rule together.
STYLE |= {
    router + ending: _add_rules(router, ending)
    for ending in _DASHES
    for router in ("zero", "knn", "mlp", "umr", "routerdc", "carrot", "logistic")
}


def find_style(policy: str) -> Style:
    """Return a policy's style; one that is not in `STYLE` depends on the label only.

    A base with a retry rule or a schedule has the base's colour.
    """
    if policy in STYLE:
        return STYLE[policy]
    base, rules = split_label(policy)
    if rules and base in STYLE:
        return _add_rules(base, policy.removeprefix(base))
    number = zlib.crc32(policy.encode())
    color = _OTHERS[number % len(_OTHERS)]
    return Style(policy, color, (_DASH_DOT, _LONG, "-")[number // 8 % 3], "P")


def sort_policies(labels: Iterable[str]) -> list[str]:
    """Sort policies as in `STYLE`, user-defined ones last and by name."""
    known = list(STYLE)
    return sorted(labels, key=lambda x: (known.index(x) if x in STYLE else len(known), x))
