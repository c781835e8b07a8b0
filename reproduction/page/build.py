"""The page: a template, filled with figures, tables, claims and manifests, in one HTML file."""

import base64
import gzip
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
from itables import options, to_html_datatable
from itables.javascript import generate_init_offline_itables_html

from cqbjax.arena.report import STYLES, fill_template
from cqbjax.core.files import write_atomic
from cqbjax.results.frame import add_interval, drop_point_intervals
from cqbjax.results.metrics import list_shares
from cqbjax.results.policy_styles import find_style
from reproduction.extracts import Extract, add_metrics
from reproduction.page import plots
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
    html = {"library": table_library(), "compared": _compared_table(compared)}
    html |= {"numbers": tabulate_numbers(ordered), "ran": _runs_table(ordered)}
    names_of = {"section": "where", "quote": "claim", "n": "seeds"}
    shown = judged.select("verdict", "section", "quote", "data", "n").rename(names_of)
    html |= {"claimed": table(shown, "claimed", ["verdict", "data"], rows=50)}
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
        "manifests": {one["name"]: json.dumps({k: one[k] for k in ("config", "manifest")}, indent=1)
                      for one in points},
    }  # fmt: skip


def pack_scripts(page: str) -> str:
    """Return a page with all its scripts compressed in one script, a third of their bytes.

    The browser decompresses and runs them in their order, with functions that browsers have had
    since 2023. A script of type `lazy/ID` runs once the element ID comes near the window.
    """
    scripts = [
        (kind[1] if (kind := re.search(r'type="([^"]+)"', words)) else "text/javascript", text)
        for words, text in SCRIPT.findall(page)
    ]
    # Without the time, so that the same results give the same page.
    packed = gzip.compress(json.dumps(scripts).encode(), compresslevel=9, mtime=0)
    loader = LOADER.read_text().rstrip().format(pack=base64.b64encode(packed).decode())
    return SCRIPT.sub("", page).replace("</body>", loader)


PAGES = [10, 25, 50, 100, 500]
LAYOUT = dict(topStart="pageLength", topEnd="search", bottomStart="info", bottomEnd="paging")
MARK = "proxy"
BASE64 = re.compile(r'"([A-Za-z0-9+/=]{1000,})"')
# Every header sorts; the header of a filtered column has a list of its values.
SORT, FILTER = "order", {"extend": "dropdown", "content": ["searchList"]}
STATISTICS = {
    "gap_mean": "gap, mean", "gap_sd": "gap, sd", "throughput": "throughput",
    "seconds_per_round": "seconds a round",
}  # fmt: skip
SHOWN = ("gap", "regret", "throughput")  # of our numbers, beside those of user-defined recorders


def table_library() -> str:
    """Return the library of all tables, inline, without itables' base64: this compresses better."""

    def decode(match: re.Match[str]) -> str:
        # A string of JavaScript that may stand in a page.
        text = json.dumps(base64.b64decode(match[1]).decode("latin1")).replace("</", "<\\/")
        return f"btoa({text})"

    library = generate_init_offline_itables_html(options.dt_bundle).partition("<div")[0]
    return BASE64.sub(decode, library)


def table(frame: pl.DataFrame, name: str, filters: Sequence[str], rows: int = 10) -> str:
    """Return a table as HTML.

    Args:
        frame: as shown; column names are the headers.
        name: its id on the page.
        filters: the headers with a list to filter by.
        rows: of a page at first.
    """
    columns = frame.columns
    chosen = [columns.index(one) for one in filters]
    numbers = [i for i, one in enumerate(columns) if frame[one].dtype.is_numeric()]
    definitions: list[dict[str, Any]] = [
        {"targets": chosen, "columnControl": [SORT, FILTER]},
        {"targets": numbers, "className": "dt-right"},
    ]
    html = to_html_datatable(
        frame, table_id=name, connected=False, maxBytes=0, maxRows=0, showIndex=False,
        lengthMenu=PAGES, pageLength=rows, allow_html=False, show_dtypes=False,
        classes="display compact", style="width:100%", autoWidth=False, layout=LAYOUT, order=[],
        columnControl=[SORT], ordering={"indicators": False, "handler": True},
        columnDefs=definitions,
    )  # fmt: skip
    return str(html).replace('type="module"', f'type="lazy/{name}"')


def _compared_table(frame: pl.DataFrame) -> str:
    """Return the table of the paper's numbers beside ours: judged rows first, empty ones last."""
    verdicts = {True: "inside", False: "outside"}
    columns: dict[str, Any] = {
        "dataset": "dataset", "K": "K", "λ": "arrival_rate", "T": "round", "policy": _policy(),
        "statistic": pl.col("statistic").replace(STATISTICS), "paper": "paper",
        "ours": _short("ours"), "difference": _short("difference"),
        "s.e.": _short("standard_error"),
        "verdict": pl.col("inside").replace_strict(verdicts, default="not judged"),
        "paper's runs": "runs", "our seeds": "seeds", "our λ": "our_rate",
        "our study": pl.col("study").fill_null("–"), "data": _mark(pl.col("stand_in")),
        "note": pl.col("note").fill_null("").str.replace("^not judged: ", ""),
    }  # fmt: skip
    order = [pl.col(key).is_null() for key in ("ours", "inside")]
    shown = frame.sort(order, maintain_order=True).select(**columns)
    filters = ["dataset", "K", "λ", "T", "policy", "statistic", "verdict", "our study"]
    return table(shown, "compared", filters)


def tabulate_numbers(extracts: Mapping[str, Extract]) -> str:
    """Return the table of our numbers: every study, setting and policy."""
    frames = []
    for name, made in extracts.items():
        own = made.notes.get("metrics", {})
        rows = made.numbers.filter(pl.col("metric").is_in([*SHOWN, *own]))
        rows = drop_point_intervals(add_interval(rows, shares=list_shares(add_metrics(own))))
        settings = [point["setting"] for point in made.notes["points"]]
        columns: dict[str, Any] = {
            "study": pl.lit(name), "dataset": pl.lit(made.notes["source"]),
            "K": _setting(settings, "K", pl.Int64),
            "N": _setting(settings, "num_servers", pl.Int64),
            "ε": _setting(settings, "slackness", pl.Float64), "λ": "arrival_rate", "T": "round",
            "policy": _policy(), "metric": "metric", "mean": _short("mean"),
            "95% from": _short("low"), "95% to": _short("high"), "sd": _short("sd"),
            "seeds": "n", "data": _mark(pl.lit(made.notes["stand_in"])),
        }  # fmt: skip
        frames.append(rows.select(**columns))
    filters = ["study", "dataset", "K", "N", "ε", "λ", "T", "policy", "metric"]
    return table(pl.concat(frames), "numbers", filters)


def _runs_table(extracts: Mapping[str, Extract]) -> str:
    """Return the table of what ran: study and point, size, time, machine and versions."""
    rows = []
    for name, made in extracts.items():
        for point in made.notes["points"]:
            manifest: Mapping[str, Any] = point["manifest"]
            versions, machine = manifest.get("versions", {}), manifest.get("machine", {})
            rows.append({
                "study": name, "point": point["name"], "seeds": point["seeds"],
                "rounds": made.notes["horizon"], "seconds": manifest.get("seconds"),
                "finished": str(manifest.get("finished", ""))[:16].replace("T", " "),
                "machine": f"{machine.get('cpu', '')}, {machine.get('cpu_cores', '')} cores",
                "jax": versions.get("jax"), "python": versions.get("python"),
                "revision": manifest.get("revision"), "code": str(manifest.get("code", ""))[:12],
                "data": MARK if made.notes["stand_in"] else "",
            })  # fmt: skip
    return table(pl.DataFrame(rows, infer_schema_length=None), "ran", ["study"])


def _mark(stand_in: pl.Expr) -> pl.Expr:
    """Mark a row on proxy data; the overview of the page describes the data."""
    return pl.when(stand_in.fill_null("") != "").then(pl.lit(MARK)).otherwise(pl.lit(""))


def _policy() -> pl.Expr:
    return pl.col("policy").map_elements(lambda x: find_style(x).name, return_dtype=pl.String)


def _short(column: str) -> pl.Expr:
    """Round to four significant digits, which a reader can compare."""
    return pl.col(column).cast(pl.Float64).round_sig_figs(4)


def _setting(settings: Sequence[Mapping[str, Any]], key: str, kind: Any) -> pl.Expr:
    """Return a point's value of a key."""
    values = {number: one.get(key) for number, one in enumerate(settings)}
    return pl.col("point").replace_strict(values, return_dtype=kind)
