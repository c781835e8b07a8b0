"""A page of the site for every table of `results/tables` and `results/bench`, and links to them."""

import re
from pathlib import Path

from page_tables import RESULTS, describe_rescaling
from sphinx.application import Sphinx

LINK = re.compile(r"\]\((?:\.\./)+results/(?:tables|bench)/(\w+)\.md\)")
INTERVAL = re.compile(r"(?<=\[)(-?[\d.,e+-]*\d), (?=-?[\d.,e+-]+\])")
LINE = re.compile(r"^\|.*\|$", re.MULTILINE)
ROW = re.compile(r"^\|[^`\n]*\|$", re.MULTILINE)
JOINT = re.compile(r"(?<=\w)(_|\.(?!\d))(?=\w)")


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
        text = "\n".join(filter(None, [text, of and describe_rescaling(of[1], text)]))
        page = folder / name
        if not page.is_file() or page.read_text() != text:
            page.write_text(text)


def _fit_to_site(app: Sphinx, docname: str, source: list[str]) -> None:
    """Adapt Markdown that is read in a checkout, too.

    Links to stored tables lead to their pages. An interval in a table stays on one line, and a name
    in a stored table may be broken at its dots and underscores.
    """
    del app
    # In rows alone: a list in a block of code has to stay code.
    text = LINE.sub(
        lambda row: INTERVAL.sub("\\1,\N{NO-BREAK SPACE}", row[0]),
        LINK.sub(r"](/tables/\1.md)", source[0]),
    )
    if docname.startswith("tables/"):
        text = ROW.sub(lambda row: JOINT.sub(r"\1<wbr>", row[0]), text)
    source[0] = text


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the pages and the links."""
    app.connect("builder-inited", _write_pages)
    app.connect("source-read", _fit_to_site)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
