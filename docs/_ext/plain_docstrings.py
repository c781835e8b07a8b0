"""Docstrings are read as they are written: plain text with `code`, not reStructuredText.

A star, a bar or an underscore of an equation (x'theta_j, |W'x|) is a character there, and what is
indented after a colon is a listing.
"""

import re
from typing import Any

from sphinx.application import Sphinx

SENTENCES = ("property", "attribute", "data")
_said: dict[str, list[str]] = {}

CODE = re.compile(r"(``.*?``|`[^`]+`|(?<!\S)\*\w+\*(?!\w))")  # and *emphasis*
LISTING = re.compile(r"(?m)^((?P<margin> *)\S.*[^:\n]):\n\n(?=(?P=margin) +\S)")
# A sentence of one letter ("num_servers: N."), which would begin a numbered list.
INITIAL = re.compile(r"((?:^|: )\s*[A-Za-z])\.(?=$| )")


def escaped(text: str) -> str:
    """Take the meaning from what reStructuredText would read as markup outside of backticks."""
    parts = CODE.split(text)
    parts[::2] = [re.sub(r"([*|\\])|(?<=\w)(_)(?!\w)", r"\\\1\2", part) for part in parts[::2]]
    return INITIAL.sub(r"\1\.", "".join(parts))


def _process(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    del app, obj, options
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
    if what in SENTENCES:
        _said[name] = made


def _restore(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Undo what napoleon makes of a property's sentence: of its first colon a type's end."""
    del app, what, obj, options
    lines[:] = _said.pop(name, lines)


def _skip(app: Sphinx, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    """Leave out the fields of a named tuple, which its docstring tells already."""
    del app, what, name, options
    return True if type(obj).__name__ == "_tuplegetter" else skip or None


def setup(app: Sphinx) -> dict[str, bool]:
    """Read docstrings before napoleon does, and after it."""
    app.setup_extension("sphinx.ext.autodoc")
    app.connect("autodoc-process-docstring", _process, priority=400)
    app.connect("autodoc-process-docstring", _restore, priority=600)
    app.connect("autodoc-skip-member", _skip)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
