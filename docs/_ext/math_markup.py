"""Equations as MathML, which browsers draw without scripts or a network.

docutils translates TeX to MathML. Sphinx's renderers need MathJax or LaTeX instead.
"""

import html
import re
from typing import Any

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging

logger = logging.getLogger(__name__)

# An accent with an index: docutils would set the index below the letter, like a limit.
ACCENT = re.compile(
    r"\\(?:hat|tilde|bar|widehat|widetilde)\s*(?:\\[a-zA-Z]+|\{[^{}]*\}|\w)(?=[_^])"
)


def _mathml(node: nodes.Node, block: bool) -> str:
    tex = re.sub(r"\\dots\b", r"\\ldots", ACCENT.sub(r"{\g<0>{}}", node.astext()))
    try:
        return tex2mathml(tex, as_block=block)
    except MathError as error:
        logger.warning("equation %r: %s", node.astext(), error, location=node)
        return f"<code>{html.escape(node.astext())}</code>"


def _inline(writer: Any, node: nodes.math) -> None:
    writer.body.append(_mathml(node, block=False))
    raise nodes.SkipNode


def _block(writer: Any, node: nodes.math_block) -> None:
    writer.body.append('<div class="equation">')
    writer.body.append(_mathml(node, block=True))
    writer.body.append("</div>")
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Register and select the renderer."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    app.config.html_math_renderer = "mathml"
    return {"parallel_read_safe": True, "parallel_write_safe": True}
