"""Docstrings are read as they are written: plain text with `code`, not reStructuredText.

A star, a bar or an underscore of an equation (x'theta_j, |W'x|) is a character there, and what is
indented after a colon is a listing.
"""

import re
from typing import Any

from sphinx.application import Sphinx

CODE = re.compile(r"(``.*?``|`[^`]+`)")
LISTING = re.compile(r"(?m)^((?P<margin> *)\S.*[^:\n]):\n\n(?=(?P=margin) +\S)")


def escaped(text: str) -> str:
    """Take the meaning from what reStructuredText would read as markup outside of backticks."""
    parts = CODE.split(text)
    parts[::2] = [re.sub(r"([*|\\])|(?<=\w)(_)(?!\w)", r"\\\1\2", part) for part in parts[::2]]
    return "".join(parts)


def _process(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    del app, what, name, obj, options
    marked = LISTING.sub(r"\1::\n\n", "\n".join(lines))
    made, margin = [], None
    for line in marked.split("\n"):
        indent = len(line) - len(line.lstrip())
        if margin is not None and line.strip() and indent <= margin:
            margin = None
        made.append(line if margin is not None else escaped(line))
        if line.endswith("::"):
            margin = indent
    lines[:] = made


def setup(app: Sphinx) -> dict[str, bool]:
    """Read docstrings before napoleon does."""
    app.connect("autodoc-process-docstring", _process, priority=400)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
