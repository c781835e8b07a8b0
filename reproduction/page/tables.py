"""The tables of the page: sorted by their headers, filtered by lists in them (itables)."""

import base64
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl
from itables import options, to_html_datatable
from itables.javascript import generate_init_offline_itables_html

from cqbjax.results.frame import with_interval, without_points
from cqbjax.results.metrics import shares_of
from cqbjax.results.names import style_of
from reproduction.extracts import Extract, described

PAGES = [10, 25, 50, 100, 500]
MARK = "stand-in"
BASE64 = re.compile(r'"([A-Za-z0-9+/=]{1000,})"')
# A header of a filtered column has a list of its values; every header sorts.
SORT, FILTER = "order", {"extend": "dropdown", "content": ["searchList"]}
STATISTICS = {
    "gap_mean": "gap, mean", "gap_sd": "gap, sd", "throughput": "throughput",
    "seconds_per_round": "seconds a round",
}  # fmt: skip
SHOWN = ("gap", "regret", "throughput")  # of our numbers, and what recorders of one's own stored


def library() -> str:
    """Return what all tables need, inline, and plain where itables has base64: so it packs."""
    made = generate_init_offline_itables_html(options.dt_bundle).partition("<div")[0]
    return BASE64.sub(lambda match: f"btoa({_literal(base64.b64decode(match[1]))})", made)


def _literal(text: bytes) -> str:
    """Return bytes as a string of JavaScript that may stand in a page."""
    return json.dumps(text.decode("latin1")).replace("</", "<\\/")


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
    return str(
        to_html_datatable(
            frame, table_id=name, connected=False, maxBytes=0, maxRows=0, showIndex=False,
            lengthMenu=PAGES, pageLength=rows, allow_html=False,
            show_dtypes=False, classes="display compact", style="width:100%", autoWidth=False,
            layout={"topStart": "pageLength", "topEnd": "search", "bottomStart": "info",
                    "bottomEnd": "paging"},
            order=[], columnControl=[SORT], ordering={"indicators": False, "handler": True},
            columnDefs=[
                {"targets": chosen, "columnControl": [SORT, FILTER]},
                {"targets": numbers, "className": "dt-right"},
            ],
        )
    )  # fmt: skip


def compared(frame: pl.DataFrame) -> str:
    """Return the table of the paper's numbers beside ours, those that have ours first."""
    frame = frame.sort(pl.col("ours").is_null(), maintain_order=True)
    shown = frame.select(
        pl.col("dataset"), pl.col("K"), pl.col("arrival_rate").alias("λ"),
        pl.col("round").alias("T"), _policy(),
        pl.col("statistic").replace_strict(STATISTICS, default=pl.col("statistic")),
        pl.col("paper"), _short("ours"), _short("difference"),
        _short("standard_error").alias("s.e."),
        pl.col("inside").replace_strict({True: "inside", False: "outside"}, default="not judged")
        .alias("verdict"),
        pl.col("runs").alias("paper's runs"), pl.col("seeds").alias("our seeds"),
        pl.col("our_rate").alias("our λ"), pl.col("study").fill_null("–").alias("our study"),
        _mark(pl.col("stand_in")),
        pl.col("note").fill_null("").str.replace("^not judged: ", ""),
    )  # fmt: skip
    filters = ["dataset", "K", "λ", "T", "policy", "statistic", "verdict", "our study"]
    return table(shown, "compared", filters)


def numbers(extracts: Mapping[str, Extract]) -> str:
    """Return the table of our numbers: every study, setting and policy."""
    frames = []
    for name, made in extracts.items():
        own = made.notes.get("metrics", {})
        rows = made.numbers.filter(pl.col("metric").is_in([*SHOWN, *own]))
        rows = without_points(with_interval(rows, shares=shares_of(described(own))))
        points = made.notes["points"]
        setting = [point["setting"] for point in points]
        frames.append(
            rows.select(
                pl.lit(name).alias("study"), pl.lit(made.notes["source"]).alias("dataset"),
                _of(setting, "K", pl.Int64), _of(setting, "num_servers", pl.Int64).alias("N"),
                _of(setting, "slackness", pl.Float64).alias("ε"),
                pl.col("arrival_rate").alias("λ"), pl.col("round").alias("T"), _policy(),
                pl.col("metric"), _short("mean"), _short("low").alias("95% from"),
                _short("high").alias("95% to"), _short("sd"), pl.col("n").alias("seeds"),
                _mark(pl.lit(made.notes["stand_in"])),
            )
        )  # fmt: skip
    filters = ["study", "dataset", "K", "N", "ε", "λ", "T", "policy", "metric"]
    return table(pl.concat(frames), "numbers", filters)


def claimed(frame: pl.DataFrame) -> str:
    """Return the table of claims: what they say, and how they fare."""
    shown = frame.select(
        "verdict", pl.col("section").alias("where"), pl.col("quote").alias("claim"),
        pl.col("data"), pl.col("n").alias("seeds"),
    )  # fmt: skip
    return table(shown, "claimed", ["verdict", "data"], rows=50)


def ran(extracts: Mapping[str, Extract]) -> str:
    """Return the table of what ran: study and point, size, time, machine and versions."""
    rows = [
        {
            "study": name, "point": point["name"], "seeds": point["seeds"],
            "rounds": made.notes["horizon"], **_manifest(point["manifest"]),
            "data": MARK if made.notes["stand_in"] else "",
        }
        for name, made in extracts.items()
        for point in made.notes["points"]
    ]  # fmt: skip
    return table(pl.DataFrame(rows, infer_schema_length=None), "ran", ["study"])


def _manifest(manifest: Mapping[str, Any]) -> dict[str, Any]:
    versions, machine = manifest.get("versions", {}), manifest.get("machine", {})
    return {
        "seconds": manifest.get("seconds"),
        "finished": str(manifest.get("finished", ""))[:16].replace("T", " "),
        "machine": f"{machine.get('cpu', '')}, {machine.get('cpu_cores', '')} cores",
        "jax": versions.get("jax"), "python": versions.get("python"),
        "revision": manifest.get("revision"), "code": str(manifest.get("code", ""))[:12],
    }  # fmt: skip


def _mark(stand_in: pl.Expr) -> pl.Expr:
    """Mark a row whose data stand in for others; what they are is said in the overview."""
    marked = pl.when(stand_in.fill_null("") != "").then(pl.lit(MARK)).otherwise(pl.lit(""))
    return marked.alias("data")


def _policy() -> pl.Expr:
    return pl.col("policy").map_elements(lambda x: style_of(x).name, return_dtype=pl.String)


def _short(column: str) -> pl.Expr:
    """Round to four significant digits: a number a reader can take in."""
    return pl.col(column).cast(pl.Float64).round_sig_figs(4)


def _of(setting: Sequence[Mapping[str, Any]], key: str, kind: Any) -> pl.Expr:
    """Return a point's own value of a key."""
    values = {number: one.get(key) for number, one in enumerate(setting)}
    return pl.col("point").replace_strict(values, return_dtype=kind).alias(key)
