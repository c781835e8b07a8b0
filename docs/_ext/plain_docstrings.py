"""Parse docstrings as plain text with `code` instead of reStructuredText.

A star, a bar or an underscore in an equation (x'theta_j, |W'x|) is an ordinary character, and an
indented block after a colon is a listing. Outside of listings, the formulas of `formulas.yaml` are
drawn.
"""

import re
from pathlib import Path
from typing import Any

import yaml
from sphinx.application import Sphinx

SENTENCES = ("property", "attribute", "data")
_docstrings: dict[str, list[str]] = {}

CODE = re.compile(r"(``.*?``|`[^`]+`|(?<!\S)\*\w+\*(?!\w))")  # and *emphasis*
LISTING = re.compile(r"(?m)^((?P<margin> *)\S.*[^:\n]):\n\n(?=(?P=margin) +\S)")
# A sentence of one letter ("num_servers: N."), which would start a numbered list.
INITIAL = re.compile(r"((?:^|: )\s*[A-Za-z])\.(?=$| )")
FORMULAS: dict[str, str] = yaml.safe_load(Path(__file__).with_name("formulas.yaml").read_text())


def find_formula(plain: str) -> re.Pattern[str]:
    """Return a pattern of a formula in plain text, which may go on in the next line."""
    return re.compile(re.escape(plain).replace(r"\ ", r"\s+"))


PATTERNS = {find_formula(plain): FORMULAS[plain] for plain in sorted(FORMULAS, key=len)[::-1]}


def draw_formulas(text: str) -> str:
    """Write the formulas of a docstring as TeX."""
    for pattern, tex in PATTERNS.items():
        drawn = f":math:`{tex}`"
        text = pattern.sub(lambda _, drawn=drawn: drawn, text)
    return text


def escaped(text: str) -> str:
    """Escape reStructuredText markup outside of backticks."""
    parts = CODE.split(text)
    parts[::2] = [re.sub(r"([*|\\])|(?<=\w)(_)(?!\w)", r"\\\1\2", part) for part in parts[::2]]
    return INITIAL.sub(r"\1\.", "".join(parts))


def _process(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    del app, obj, options
    marked = draw_formulas(LISTING.sub(r"\1::\n\n", "\n".join(lines)))
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
        _docstrings[name] = made


def _restore(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Undo napoleon's change of a property's docstring, which it splits at the first colon."""
    del app, what, obj, options
    lines[:] = _docstrings.pop(name, lines)


def _skip(app: Sphinx, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    """Skip the fields of a named tuple, which its docstring documents."""
    del app, what, name, options
    return True if type(obj).__name__ == "_tuplegetter" else skip or None


def setup(app: Sphinx) -> dict[str, bool]:
    """Process docstrings before and after napoleon."""
    app.setup_extension("sphinx.ext.autodoc")
    app.connect("autodoc-process-docstring", _process, priority=400)
    app.connect("autodoc-process-docstring", _restore, priority=600)
    app.connect("autodoc-skip-member", _skip)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
