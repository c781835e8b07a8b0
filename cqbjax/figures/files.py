"""Figures written to files: a PNG, or a PDF for LaTeX."""

import io
import math
from pathlib import Path
from typing import Any, cast

import matplotlib
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image

from cqbjax.core.files import write_atomic
from cqbjax.figures.panels import PAGE_WIDTH, fit_legend, fonts

DOTS_PER_INCH = 150
PAPER_WIDTHS, PAPER_POINTS = {1: 3.3, 2: 6.9}, 8  # inches of one and two columns
COLOURS = 256  # of a PNG: it looks the same with a third of the bytes
PDF_METADATA: dict[str, Any] = {"CreationDate": None, "Creator": None, "Producer": None}


def save_figure(figure: Figure, stem: str | Path, dots: int = DOTS_PER_INCH) -> Path:
    """Write a figure as `stem`.png, with 256 colours, atomically.

    It has no date, so that the same figure gives the same bytes.

    Args:
        figure: a figure of Matplotlib.
        stem: the path without its ending.
        dots: per inch.

    Returns:
        The path of the PNG.
    """
    write_atomic(path := Path(f"{stem}.png"), encode_png(figure, dots))
    return path


def save_paper_figure(figure: Figure, stem: str | Path, columns: int | None = None) -> Path:
    """Write a figure as `stem`.pdf for LaTeX: 8-point letters, no title or note, no date.

    The given figure is changed: its size, title, note and legend.

    Args:
        figure: a figure of Matplotlib.
        stem: the path without its ending.
        columns: its width in columns of a page, 1 or 2. None: 1 if the figure is at most a page
            wide and has at most two panels side by side.

    Returns:
        The path of the PDF.
    """
    grid = figure.axes[0].get_gridspec()
    wide = figure.get_figwidth() > PAGE_WIDTH or (grid is not None and grid.ncols > 2)
    width = PAPER_WIDTHS[columns or 1 + wide]
    # Letters do not shrink, so the height shrinks less than the width.
    shrunk = math.sqrt(width / figure.get_figwidth())
    figure.set_size_inches(width, figure.get_figheight() * shrunk)
    figure.suptitle("")
    figure.supxlabel("")
    for legend in list(figure.legends):
        for handle, text in zip(legend.legend_handles, legend.get_texts(), strict=True):
            handle.set_label(text.get_text())  # type: ignore[union-attr]
        legend.remove()
        with fonts(PAPER_POINTS):
            fit_legend(figure, legend.legend_handles, legend.get_title().get_text(), PAPER_POINTS)
    for text in figure.findobj(Text):
        cast(Text, text).set_fontsize(PAPER_POINTS)
    buffer = io.BytesIO()
    # Type 42 keeps the text of a PDF selectable.
    with matplotlib.rc_context({"pdf.fonttype": 42}):
        figure.savefig(buffer, format="pdf", dpi=DOTS_PER_INCH, metadata=PDF_METADATA)
    write_atomic(path := Path(f"{stem}.pdf"), buffer.getvalue())
    return path


def encode_png(figure: Figure, dots: int = DOTS_PER_INCH) -> bytes:
    """Return a figure as a PNG with a palette of 256 colours."""
    drawn, buffer = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png", dpi=dots, metadata={"Software": None})
    # Coverage keeps the colours of small dots; k-means keeps the tint of large pale areas.
    made = Image.open(drawn).convert("RGB").quantize(COLOURS, Image.Quantize.MAXCOVERAGE, kmeans=4)
    made.save(buffer, format="PNG", optimize=True, dpi=(dots, dots))
    return buffer.getvalue()
