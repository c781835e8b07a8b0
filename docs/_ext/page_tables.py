"""Tables of stored results in the pages, so that a page has its numbers in a checkout, too.

    python docs/_ext/page_tables.py

writes them again into all pages of `docs/`. A page says in a comment which table follows:

    <!-- stored mmlu_pro
    where: K=1 round=5000
    policies: acqb_cl acqb zero
    over: arrival_rate
    value: gap_mean
    -->

    <!-- end -->

A line that goes on is indented. The numbers are those of `results/tables/mmlu_pro.csv`. For each
value of the column `over` there is one column per name in `value`; columns named in `also` follow.
Rows are policies, or with `rows` all values of another column, in the table's order. Several tables
can be combined `over` a column in which they differ; `round=last` is then the last round of each
table. Further comments are

    measured peers peers        a section of a benchmark report, `results/bench/peers.json`
    items figure table          the paper's items of some kinds, `reproduction/paper/items.yaml`
    states                      their states, the meaning, and the number of items in each
"""

import os
import re
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY))  # the benchmarks and the reproduction are not installed

import polars as pl  # noqa: E402

import benchmarks as bench  # noqa: E402
from cqbjax.results import policy_styles  # noqa: E402
from cqbjax.results.table_text import NONE, WHY_NONE  # noqa: E402
from reproduction.paper import catalogue  # noqa: E402

RESULTS = REPOSITORY / "results"
PLACE = re.compile(r"(<!-- (stored|measured|items|states)\b(.*?)-->\n).*?(<!-- end -->)", re.DOTALL)
OPTIONS = {"where", "policies", "rows", "over", "value", "also", "digits"}
NOT_PAGES = {".png", ".csv", ".py", ".svg"}
# Number of prompts by source, and how many of them no LLM answered correctly (test_site.py).
UNSOLVED = {"MMLU-Pro": (12_002, 664), "RouterBench slice": (3_164, 77), "ParetoBandit": (3_609, 0)}
HEADINGS = {
    "paper_throughput": "the paper's",
    "gap_mean": "gap",
    "length_mean": "queue length",
    "regret_mean": "regret",
    "paper_gap_mean": "the paper's gap",
    "acqb_minus": "ACQB minus policy",
    "stable_up_to": "stable up to",
    "closed_form": "closed form",
}


def fill(text: str, page: Path) -> str:
    """Return a page's text with its tables written again.

    Raises:
        ValueError: a table is missing, or lacks a policy, a column or a round that the page shows.
    """

    def write(match: re.Match[str]) -> str:
        comment, kind, words, end = match.groups()
        return f"{comment}\n{TABLES[kind](words, page.parent)}\n{end}"

    return PLACE.sub(write, text)


def _write_stored(words: str, folder: Path) -> str:
    first, *lines = words.strip().replace("\n  ", " ").split("\n")
    return StoredTable(first.split(), dict(line.split(": ", 1) for line in lines)).write(folder)


class StoredTable:
    """A table of policies, or of the values of column `rows`, from stored tables."""

    def __init__(self, tables: Sequence[str], options: dict[str, str]) -> None:
        """Store the names of the tables and the options of the comment.

        Raises:
            ValueError: an option is unknown.
        """
        if unknown := options.keys() - OPTIONS:
            raise ValueError(f"{tables[0]}: no option {', '.join(sorted(unknown))}")
        self.tables, self.options = tables, options

    def write(self, folder: Path) -> str:
        """Return the table, and below it the provenance of the data and the number of seeds."""
        read = [self._chosen(name, self._read(name)) for name in self.tables]
        frame = pl.concat(read, how="diagonal_relaxed")
        header, rows = self._grid(frame)
        text = f"| {' | '.join(header)} |\n|---{'|---:' * (len(header) - 1)}|\n"
        text += "".join(f"| {' | '.join(row)} |\n" for row in rows)
        why = f" {WHY_NONE}." if NONE in text else ""
        caption = f"{self._caption(frame, os.path.relpath(RESULTS / 'tables', folder))}{why}"
        return f"{text}\n{_wrap(caption)}\n"

    def _read(self, name: str) -> pl.DataFrame:
        file = RESULTS / "tables" / f"{name}.csv"
        if not file.is_file():
            raise ValueError(f"no stored table {file.relative_to(REPOSITORY)}")
        return pl.read_csv(file, infer_schema_length=None)

    def _words(self, option: str) -> list[str]:
        return self.options.get(option, "").split()

    @property
    def _rows(self) -> str:
        return self.options.get("rows", "policy")

    def _chosen(self, table: str, frame: pl.DataFrame) -> pl.DataFrame:
        conditions = [each.split("=") for each in self._words("where")]
        named = [key for key, _ in conditions] + [self._rows]
        named += [key for option in ("over", "value", "also") for key in self._words(option)]
        for key in named:
            if key not in frame.columns:
                raise ValueError(f"{table} has no column {key}")
        for key, value in conditions:
            wanted: Any = value if frame[key].dtype == pl.String else None
            if frame[key].dtype == pl.Boolean:
                wanted = value == "True"
            elif wanted is None:
                wanted = frame[key].max() if value == "last" else float(value)
            frame = frame.filter(pl.col(key) == wanted)
        missing = set(self._words("policies")) - set(frame[self._rows])
        if missing:
            raise ValueError(f"{table} has no such row: {', '.join(sorted(missing))}")
        if frame.is_empty():
            raise ValueError(f"{table}: `where` leaves no row")
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
            raise ValueError(f"{self.tables[0]}: `where` leaves {len(found)} rows of {label}")
        middle, *ends = (found[0].get(name) for name in parts)
        if middle is None or isinstance(middle, str):
            return middle or "–"
        shown = self._number(column)
        if None not in ends:
            return f"{shown(middle)} [{shown(ends[0])}, {shown(ends[1])}]"
        return f"{shown(middle)} {NONE}" if parts[1] in own.columns else shown(middle)

    def _number(self, column: str) -> Callable[[float], str]:
        in_queries = any(word in column for word in ("gap", "length", "regret"))
        digits = int(self.options.get("digits", 1 if in_queries else 3))
        return lambda number: f"{number:,.{digits}f}"

    def _caption(self, frame: pl.DataFrame, where: str) -> str:
        parts = []
        if "stand_in" in frame.columns:
            known = frame["stand_in"].drop_nulls().unique(maintain_order=True)
            parts += [f"**Data: {one}.**" for one in known if one]
        if "seeds" in frame.columns:
            parts.append(f"{frame['seeds'][0]} seeds; in brackets the 95% interval over seeds.")
        if "source" in frame.columns:
            for source in frame["source"].unique(maintain_order=True):
                own = frame.filter(source=source).head(1).select(pl.col("^source.*$")).to_dicts()
                parts.append(describe_rescaling(str(source), str(own)))
        first, *others = (f"{where}/{name}.md" for name in self.tables)
        parts.append(f"[The whole table]({first}).")
        parts += [
            f"[Second table]({other})." if len(others) == 1 else f"[Table {number}]({other})."
            for number, other in enumerate(others, 2)
        ]
        return " ".join(filter(None, parts))


def _wrap(text: str) -> str:
    return textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False)


def describe_rescaling(source: str, settings: str) -> str:
    """Return a sentence on the best LLM of each prompt, if min-max rescaling makes it satisfy.

    Args:
        source: the name of the table's source.
        settings: the settings of the source; with `min_max` among them there is no rescaling.
    """
    if source not in UNSOLVED or "min_max" in settings:
        return ""
    prompts, unsolved = UNSOLVED[source]
    the = "the " if source.endswith(" slice") else ""
    best = f"By the paper's recipe, the best LLM of each prompt of {the}{source}"
    scope = f", even on the {unsolved} of {prompts:,} that no LLM answered correctly"
    return f"{best} satisfies the user with probability .99{scope if unsolved else ''}."


def _at(key: str, value: Any) -> str:
    if key == "source":
        return str(value)
    symbol = {"arrival_rate": "λ", "num_servers": "N", "load": "ρ", "horizon": "T",
              "source.pool_size": "prompts"}.get(key, key.removeprefix("source."))  # fmt: skip
    return f"{symbol} = {value:g}" if isinstance(value, int | float) else f"{symbol} = {value}"


def _write_measured(words: str, folder: Path) -> str:
    """Return a section of a benchmark report, and below it the machine, versions and date."""
    del folder
    name, section = words.split()
    report = bench.load(RESULTS / "bench" / f"{name}.json")
    if not report["sections"].get(section):
        raise ValueError(f"results/bench/{name}.json has no rows of {section}")
    return f"{bench.table(report, section)}\n\n{_wrap(bench.heading(report))}\n"


def _write_items(words: str, folder: Path) -> str:
    """Return a table of all items of the paper of some kinds."""
    chosen = [one for one in catalogue.load_items() if one.kind in words.split()]
    if not chosen:
        raise ValueError(f"the paper has no {words.strip()}")
    text = "| | description | state | command | see |\n|---|---|---|---|---|\n"
    for one in chosen:
        what = f"{one.what}; {one.note}" if one.note else one.what
        command = f"`{one.command}`" if one.command else ""
        cells = [f"{one.kind.capitalize()} {one.number}", what.replace("|", "\\|"), one.state]
        text += f"| {' | '.join([*cells, command, _link(one.see, folder)])} |\n"
    return text


def _link(see: str, folder: Path) -> str:
    """Return a link to a page, or the name of another file."""
    path = Path(see)
    if not see or path.suffix in NOT_PAGES:
        return f"`{see}`" if see else ""
    return f"[{path.stem}]({os.path.relpath(REPOSITORY / see, folder)})"


def _write_states(words: str, folder: Path) -> str:
    """Return a table of the states of items, with the number of items in each."""
    del words, folder
    states = [one.state for one in catalogue.load_items()]
    rows = [f"| {k} | {meaning} | {states.count(k)} |" for k, meaning in catalogue.STATES.items()]
    return "\n".join(["| state | meaning | how many |", "|---|---|---:|", *rows, ""])


TABLES: dict[str, Callable[[str, Path], str]] = {
    "stored": _write_stored, "measured": _write_measured, "items": _write_items,
    "states": _write_states,
}  # fmt: skip


def main() -> None:
    """Write the tables of all pages again."""
    for page in sorted((REPOSITORY / "docs").glob("*/*.md")):
        text = page.read_text()
        if (filled := fill(text, page)) != text:
            page.write_text(filled)
            print(page.relative_to(REPOSITORY))


if __name__ == "__main__":
    main()
