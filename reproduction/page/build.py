"""The page: a template, filled with figures, tables, claims and manifests, in one HTML file."""

import base64
import gzip
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from cqbjax.arena.report import STYLES, fill_template
from cqbjax.core.files import write_atomic
from reproduction.extracts import Extract
from reproduction.page import plots, tables
from reproduction.paper import claims, comparison
from reproduction.paper.catalogue import ReportStudy

TEMPLATE, LOADER = (Path(__file__).with_name(name) for name in ("page.html.j2", "loader.html"))
SCRIPT = re.compile(r"<script([^>]*)>(.*?)</script>\s*", re.DOTALL)
VERDICT_MARKS = {
    claims.HOLDS: "✓", claims.IN_PART: "◐", claims.FAILS: "✗", claims.UNDECIDED: "≈",
    claims.CANNOT: "–", claims.NOT_RUN: "…",
}  # fmt: skip


def build(
    extracts: Mapping[str, Extract], compared: pl.DataFrame, judged: pl.DataFrame,
    listed: Sequence[ReportStudy], path: Path,
) -> Path:  # fmt: skip
    """Write the page: one file that opens from disk and needs no network.

    Args:
        extracts: by the names of their studies; at least one.
        compared: from `comparison.compare`.
        judged: from `claims.judge_all`.
        listed: the studies of the report, in its order.
        path: of the page.

    Returns:
        The path.
    """
    names = [one.name for one in listed if one.name in extracts]
    ordered = {name: extracts[name] for name in [*names, *(set(extracts) - set(names))]}
    drawn = plots.draw(list(ordered.values()))
    html = {
        "library": tables.library(), "compared": tables.compared(compared),
        "claimed": tables.claimed(judged), "numbers": tables.numbers(ordered),
        "ran": tables.ran(ordered),
    }  # fmt: skip
    printed = compared.select("dataset", "table", "arrival_rate", "round", "policy", "statistic")
    verdicts = judged["verdict"].to_list()
    text = fill_template(
        TEMPLATE, css=STYLES.read_text(), drawn=drawn, tables=html,
        studies=[_describe(made, drawn, listed) for made in ordered.values()],
        missing=[one for one in listed if one.name not in extracts],
        counts=comparison.count(compared).to_dicts(), printed=printed.n_unique(),
        verdicts=[(one, verdicts.count(one)) for one in claims.VERDICTS],
        claims=judged.to_dicts(), marks=VERDICT_MARKS,
    )  # fmt: skip
    write_atomic(path, pack_scripts(text).encode())
    return path


def _describe(made: Extract, drawn: plots.Drawn, listed: Sequence[ReportStudy]) -> dict[str, Any]:
    """Return the template's fields of a study."""
    notes, points = made.notes, made.notes["points"]
    seeds = sorted({point["seeds"] for point in points})
    answers = {one.name: one.answers for one in listed}
    return {
        **{key: notes[key] for key in ("name", "title", "source", "stand_in", "horizon")},
        "answers": answers.get(notes["name"], ""),
        "seeds": f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}",
        "several_seeds": seeds[0] > 1, "figure": drawn.figures[notes["name"]],
        "manifests": {
            one["name"]: json.dumps({key: one[key] for key in ("config", "manifest")}, indent=1)
            for one in points
        },
    }  # fmt: skip


def pack_scripts(page: str) -> str:
    """Return a page with all its scripts compressed in one script, a third of their bytes.

    The browser decompresses and runs them in their order, with functions that browsers have had
    since 2023.
    """
    scripts = [
        (kind[1] if (kind := re.search(r'type="([^"]+)"', words)) else "text/javascript", text)
        for words, text in SCRIPT.findall(page)
    ]
    # Without the time, so that the same results give the same page.
    packed = gzip.compress(json.dumps(scripts).encode(), compresslevel=9, mtime=0)
    loader = LOADER.read_text().rstrip().format(pack=base64.b64encode(packed).decode())
    return SCRIPT.sub("", page).replace("</body>", loader)
