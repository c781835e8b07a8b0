"""The tables of the page, with sorting and filters in their headers (itables)."""

import base64
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl
from itables import options, to_html_datatable
from itables.javascript import generate_init_offline_itables_html

from cqbjax.results.frame import add_interval, drop_point_intervals
from cqbjax.results.metrics import list_shares
from cqbjax.results.names import find_style
from reproduction.extracts import Extract, add_metrics

PAGES = [10, 25, 50, 100, 500]
MARK = "proxy"
BASE64 = re.compile(r'"([A-Za-z0-9+/=]{1000,})"')
# Every header sorts; the header of a filtered column has a list of its values.
SORT, FILTER = "order", {"extend": "dropdown", "content": ["searchList"]}
STATISTICS = {
    "gap_mean": "gap, mean", "gap_sd": "gap, sd", "throughput": "throughput",
    "seconds_per_round": "seconds a round",
}  # fmt: skip
SHOWN = ("gap", "regret", "throughput")  # of our numbers, beside those of user-defined recorders


def library() -> str:
    """Return the library of all tables, inline, without itables' base64: this compresses better."""

    def decode(match: re.Match[str]) -> str:
        # A string of JavaScript that may stand in a page.
        text = json.dumps(base64.b64decode(match[1]).decode("latin1")).replace("</", "<\\/")
        return f"btoa({text})"

    return BASE64.sub(
        decode, generate_init_offline_itables_html(options.dt_bundle).partition("<div")[0]
    )


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
    """Return the table of the paper's numbers beside ours; rows without ours come last."""
    verdicts = {True: "inside", False: "outside"}
    shown = frame.sort(pl.col("ours").is_null(), maintain_order=True).select(
        "dataset", "K", _policy(), "paper", _short("ours"), _short("difference"),
        λ="arrival_rate", T="round", statistic=pl.col("statistic").replace(STATISTICS),
        **{"s.e.": _short("standard_error"), "paper's runs": "runs", "our seeds": "seeds",
           "our λ": "our_rate", "our study": pl.col("study").fill_null("–")},
        verdict=pl.col("inside").replace_strict(verdicts, default="not judged"),
        data=_mark(pl.col("stand_in")),
        note=pl.col("note").fill_null("").str.replace("^not judged: ", ""),
    ).select(
        "dataset", "K", "λ", "T", "policy", "statistic", "paper", "ours", "difference", "s.e.",
        "verdict", "paper's runs", "our seeds", "our λ", "our study", "data", "note",
    )  # fmt: skip
    filters = ["dataset", "K", "λ", "T", "policy", "statistic", "verdict", "our study"]
    return table(shown, "compared", filters)


def numbers(extracts: Mapping[str, Extract]) -> str:
    """Return the table of our numbers: every study, setting and policy."""
    frames = []
    for name, made in extracts.items():
        own = made.notes.get("metrics", {})
        rows = made.numbers.filter(pl.col("metric").is_in([*SHOWN, *own]))
        rows = drop_point_intervals(add_interval(rows, shares=list_shares(add_metrics(own))))
        settings = [point["setting"] for point in made.notes["points"]]
        frames.append(
            rows.select(
                pl.lit(name).alias("study"), pl.lit(made.notes["source"]).alias("dataset"),
                _setting(settings, "K", pl.Int64), _setting(settings, "num_servers", pl.Int64, "N"),
                _setting(settings, "slackness", pl.Float64, "ε"),
                pl.col("arrival_rate").alias("λ"), pl.col("round").alias("T"), _policy(),
                pl.col("metric"), _short("mean"), _short("low").alias("95% from"),
                _short("high").alias("95% to"), _short("sd"), pl.col("n").alias("seeds"),
                _mark(pl.lit(made.notes["stand_in"])).alias("data"),
            )
        )  # fmt: skip
    filters = ["study", "dataset", "K", "N", "ε", "λ", "T", "policy", "metric"]
    return table(pl.concat(frames), "numbers", filters)


def claimed(frame: pl.DataFrame) -> str:
    """Return the table of claims with their verdicts."""
    names = {"section": "where", "quote": "claim", "n": "seeds"}
    shown = frame.select("verdict", "section", "quote", "data", "n").rename(names)
    return table(shown, "claimed", ["verdict", "data"], rows=50)


def ran(extracts: Mapping[str, Extract]) -> str:
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


def _setting(settings: Sequence[Mapping[str, Any]], key: str, kind: Any, name: str = "") -> pl.Expr:
    """Return a point's value of a key."""
    values = {number: one.get(key) for number, one in enumerate(settings)}
    return pl.col("point").replace_strict(values, return_dtype=kind).alias(name or key)
