"""Stored results in the pages: numbers are read from `results/` when the site is built.

The numbers of a page therefore always equal those of the committed tables. The build fails if a
table is missing, or lacks a policy or a round that a page shows.

    ```{stored} mmlu_pro
    :where: K=1 round=5000
    :policies: acqb_cl acqb zero
    :over: arrival_rate
    :value: gap_mean
    ```

For each value of the column `over` there is one column per name in `value`; columns named in `also`
follow. Rows are policies, or with `rows` all values of another column, in the table's order.
Several tables can be combined `over` a column in which they differ; `round=last` is then the last
round of each table. Every table of `results/tables` and `results/bench` also has a page.

    ```{measured} peers
    :section: peers
    ```

shows one section of a benchmark report, `results/bench/peers.json`, with the machine and the date.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import benchmarks as bench
from cqbjax.results import policy_styles
from cqbjax.results.table_text import NONE, WHY_NONE

REPOSITORY = Path(__file__).resolve().parents[2]
RESULTS = REPOSITORY / "results"
LINK = re.compile(r"\]\((?:\.\./)+results/(?:tables|bench)/(\w+)\.md\)")
INTERVAL = re.compile(r"(?<=\[)(-?[\d.,e+-]*\d), (?=-?[\d.,e+-]+\])")
ROW = re.compile(r"^\|[^`\n]*\|$", re.MULTILINE)
JOINT = re.compile(r"(?<=\w)(_|\.(?!\d))(?=\w)")
# Number of prompts by source, and how many of them no LLM answered correctly (test_site.py).
UNSOLVED = {"MMLU-Pro": (12_002, 664), "RouterBench slice": (3_164, 77), "ParetoBandit": (3_609, 0)}
HEADINGS = {
    "paper_throughput": "the paper's",
    "gap_mean": "gap",
    "length_mean": "queue length",
    "regret_mean": "regret",
    "paper_gap_mean": "the paper's gap",
    "acqb_minus": "ACQB minus policy",
    "world": "scenario",
    "borne": "stable up to",
    "closed_form": "closed form",
}


class Stored(SphinxDirective):
    """A table of policies, or of the values of column `rows`, from `results/tables/NAME.csv`."""

    required_arguments = 1
    optional_arguments = 9
    option_spec = {
        "where": directives.unchanged,
        "policies": directives.unchanged_required,
        "rows": directives.unchanged_required,
        "over": directives.unchanged,
        "value": directives.unchanged_required,
        "also": directives.unchanged,
        "digits": directives.nonnegative_int,
    }

    def run(self) -> list[nodes.Node]:
        """Return the table, and below it the provenance of the data and the number of seeds."""
        read = [self._chosen(name, self._read(name)) for name in self.arguments]
        frame = pl.concat(read, how="diagonal_relaxed")
        header, rows = self._grid(frame)
        text = f"| {' | '.join(header)} |\n|---{'|---:' * (len(header) - 1)}|\n"
        text += "".join(f"| {' | '.join(row)} |\n" for row in rows)
        why = f" {WHY_NONE}." if NONE in text else ""
        return self.parse_text_to_nodes(f"{text}\n{self._caption(frame)}{why}\n")

    def _read(self, name: str) -> pl.DataFrame:
        file = RESULTS / "tables" / f"{name}.csv"
        if not file.is_file():
            raise self.error(f"no stored table {file.relative_to(REPOSITORY)}")
        self.env.note_dependency(str(file))
        return pl.read_csv(file, infer_schema_length=None)

    def _words(self, option: str) -> list[str]:
        words: list[str] = self.options.get(option, "").split()
        return words

    @property
    def _rows(self) -> str:
        rows: str = self.options.get("rows", "policy")
        return rows

    def _chosen(self, table: str, frame: pl.DataFrame) -> pl.DataFrame:
        conditions = [each.split("=") for each in self._words("where")]
        named = [key for key, _ in conditions] + [self._rows]
        named += [key for option in ("over", "value", "also") for key in self._words(option)]
        for key in named:
            if key not in frame.columns:
                raise self.error(f"{table} has no column {key}")
        for key, value in conditions:
            wanted: Any = value if frame[key].dtype == pl.String else None
            if frame[key].dtype == pl.Boolean:
                wanted = value == "True"
            elif wanted is None:
                wanted = frame[key].max() if value == "last" else float(value)
            frame = frame.filter(pl.col(key) == wanted)
        missing = set(self._words("policies")) - set(frame[self._rows])
        if missing:
            raise self.error(f"{table} has no such row: {', '.join(sorted(missing))}")
        if frame.is_empty():
            raise self.error(f"{table}: `where` leaves no row")
        return frame

    def _grid(self, frame: pl.DataFrame) -> tuple[list[str], list[list[str]]]:
        key, values = self._rows, self._words("value")
        labels = self._words("policies") or frame[key].unique(maintain_order=True).to_list()
        of_policies = key == "policy"
        header = [HEADINGS.get(key, key)]
        rows = [
            [policy_styles.find_style(label).name if of_policies else label] for label in labels
        ]
        over = self.options.get("over")
        shown = []
        points = frame[over].unique(maintain_order=True).to_list() if over else [None]
        for point in points if isinstance(points[0], str) else sorted(points):
            some = frame if point is None else frame.filter(pl.col(over) == point)
            for name in values:
                heading = HEADINGS.get(name, name)
                if point is not None:
                    heading = _at(over, point) + (f", {heading}" if len(values) > 1 else "")
                shown.append((some, name, heading))
        shown += [(frame, name, HEADINGS.get(name, name)) for name in self._words("also")]
        for some, name, heading in shown:
            header.append(heading)
            for row, label in zip(rows, labels, strict=True):
                row.append(self._cell(some, label, name))
        return header, rows

    def _cell(self, frame: pl.DataFrame, label: str, column: str) -> str:
        parts = [f"{column}{end}" for end in ("", "_low", "_high")]
        own = frame.filter(pl.col(self._rows) == label)
        found = own.select(name for name in parts if name in own.columns).unique().rows(named=True)
        if not found:
            return "–"
        if len(found) > 1:
            raise self.error(f"{self.arguments[0]}: `where` leaves {len(found)} rows of {label}")
        middle, *ends = (found[0].get(name) for name in parts)
        if middle is None or isinstance(middle, str):
            return middle or "–"
        shown = self._number(column)
        if None not in ends:
            return f"{shown(middle)} [{shown(ends[0])}, {shown(ends[1])}]"
        return f"{shown(middle)} {NONE}" if parts[1] in own.columns else shown(middle)

    def _number(self, column: str) -> Callable[[float], str]:
        in_queries = any(word in column for word in ("gap", "length", "regret"))
        digits = self.options.get("digits", 1 if in_queries else 3)
        return lambda number: f"{number:,.{digits}f}"

    def _caption(self, frame: pl.DataFrame) -> str:
        parts = []
        if "stand_in" in frame.columns:
            known = frame["stand_in"].drop_nulls().unique(maintain_order=True)
            parts += [f"**Data: {one}.**" for one in known if one]
        if "seeds" in frame.columns:
            parts.append(f"{frame['seeds'][0]} seeds; in brackets the 95% interval over seeds.")
        if "source" in frame.columns:
            for source in frame["source"].unique(maintain_order=True):
                own = frame.filter(source=source).head(1).select(pl.col("^source.*$")).to_dicts()
                parts.append(_describe_rescaling(str(source), str(own)))
        first, *others = (f"/tables/{name}.md" for name in self.arguments)
        parts.append(f"[The whole table]({first}).")
        parts += [
            f"[Second table]({other})." if len(others) == 1 else f"[Table {number}]({other})."
            for number, other in enumerate(others, 2)
        ]
        return " ".join(filter(None, parts))


class Measured(SphinxDirective):
    """The table of one `section` of a report of the benchmark, `results/bench/NAME.json`."""

    required_arguments = 1
    option_spec = {"section": directives.unchanged_required}

    def run(self) -> list[nodes.Node]:
        """Return the table, and below it the machine, the versions and the date."""
        file, section = RESULTS / "bench" / f"{self.arguments[0]}.json", self.options["section"]
        try:
            report = bench.load(file)
        except ValueError as error:
            raise self.error(str(error)) from error
        self.env.note_dependency(str(file))
        if not report["sections"].get(section):
            raise self.error(f"{file.relative_to(REPOSITORY)} has no rows of {section}")
        return self.parse_text_to_nodes(
            f"{bench.table(report, section)}\n\n{bench.heading(report)}\n"
        )


def _describe_rescaling(source: str, settings: str) -> str:
    """Return a sentence on the best LLM of each prompt, if min-max rescaling makes it satisfy.

    Args:
        source: the name of the table's source.
        settings: the settings of the source; with `min_max` among them there is no rescaling.
    """
    if source not in UNSOLVED or "min_max" in settings:
        return ""
    prompts, unsolved = UNSOLVED[source]
    sentence = f"The best LLM of every prompt of {source} satisfies with probability .99"
    scope = f", including the {unsolved} of {prompts:,} that no LLM answered correctly"
    return f"{sentence}{scope if unsolved else ''}."


def _at(key: str, value: Any) -> str:
    if key == "source":
        return str(value)
    symbol = {"arrival_rate": "λ", "num_servers": "N", "load": "ρ", "horizon": "T",
              "source.pool_size": "prompts"}.get(key, key.removeprefix("source."))  # fmt: skip
    return f"{symbol} = {value:g}" if isinstance(value, int | float) else f"{symbol} = {value}"


def _write_pages(app: Sphinx) -> None:
    """Write a page for every stored table, in `tables/`."""
    folder = Path(app.srcdir) / "tables"
    folder.mkdir(exist_ok=True)
    stored = {
        one.name: one for part in ("tables", "bench") for one in (RESULTS / part).glob("*.md")
    }
    for page in set(folder.glob("*.md")) - {folder / name for name in stored}:
        page.unlink()
    for name, file in stored.items():
        text = re.sub(r"\A\*\*(.+)\*\*$", r"# \1", file.read_text(), count=1, flags=re.MULTILINE)
        of = re.search(r"^In all rows: source (.+?);", text, re.MULTILINE)
        text = "\n".join(filter(None, [text, of and _describe_rescaling(of[1], text)]))
        page = folder / name
        if not page.is_file() or page.read_text() != text:
            page.write_text(text)


def _fit_to_site(app: Sphinx, docname: str, source: list[str]) -> None:
    """Adapt Markdown that is read in a checkout, too.

    Links to stored tables lead to their pages. An interval in a table stays on one line, and a name
    in a stored table may be broken at its dots and underscores.
    """
    del app
    text = INTERVAL.sub("\\1,\N{NO-BREAK SPACE}", LINK.sub(r"](/tables/\1.md)", source[0]))
    if docname.startswith("tables/"):
        text = ROW.sub(lambda row: JOINT.sub(r"\1<wbr>", row[0]), text)
    source[0] = text


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directives and the pages."""
    app.add_directive("stored", Stored)
    app.add_directive("measured", Measured)
    app.connect("builder-inited", _write_pages)
    app.connect("source-read", _fit_to_site)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
