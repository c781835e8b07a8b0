"""Figures written to files: a PNG and a PDF each."""

import io
import math
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
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


def save_figure(figure: Figure, stem: str | Path, dots: int = DOTS_PER_INCH) -> tuple[Path, Path]:
    """Write a figure as `stem`.png, with 256 colours, and `stem`.pdf; both atomically.

    Both have the same layout, and no date, so that the same figure gives the same bytes.

    Args:
        figure: a figure of Matplotlib.
        stem: the path without its ending.
        dots: per inch, of the PNG.

    Returns:
        The two paths.
    """
    stem = Path(stem)
    png, pdf = (stem.with_name(f"{stem.name}.{kind}") for kind in ("png", "pdf"))
    with _merge_glyph_warnings(), _laid_out(figure, dots):
        write_atomic(png, encode_png(figure, dots))
        write_atomic(pdf, _encode_pdf(figure, dots))
    return png, pdf


def save_paper_figure(figure: Figure, stem: str | Path, columns: int | None = None) -> Path:
    """Write a figure as `stem`.pdf for LaTeX: 8-point letters, no title or note, no date.

    The figure itself changes.

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
    with _merge_glyph_warnings(), _laid_out(figure, DOTS_PER_INCH):
        write_atomic(path := Path(f"{stem}.pdf"), _encode_pdf(figure, DOTS_PER_INCH))
    return path


def _encode_pdf(figure: Figure, dots: int) -> bytes:
    buffer, settings = io.BytesIO(), dict[Any, Any]({"pdf.fonttype": 42})
    # Type 42 keeps the text of a PDF selectable.
    with matplotlib.rc_context(settings):
        figure.savefig(buffer, format="pdf", dpi=dots, metadata=PDF_METADATA)
    return buffer.getvalue()


def encode_png(figure: Figure, dots: int = DOTS_PER_INCH) -> bytes:
    """Return a figure as a PNG with a palette of 256 colours."""
    drawn, buffer = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png", dpi=dots, metadata={"Software": None})
    # Coverage keeps the colours of small dots; k-means keeps the tint of large pale areas.
    made = Image.open(drawn).convert("RGB").quantize(COLOURS, Image.Quantize.MAXCOVERAGE, kmeans=4)
    made.save(buffer, format="PNG", optimize=True, dpi=(dots, dots))
    return buffer.getvalue()


@contextmanager
def _merge_glyph_warnings() -> Iterator[None]:
    """Warn once of letters that no font has, where Matplotlib warns of each letter in each file."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    missing: dict[str, None] = {}  # in the order of their first use
    for one in caught:
        if glyph := re.match(r"Glyph (\d+) .*missing from", str(one.message)):
            missing[chr(int(glyph[1]))] = None
        else:
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
    if missing:
        text = f"figures show boxes in place of {''.join(missing)}: no installed font has these"
        text += " letters, install one such as Noto Sans CJK"
        warnings.warn(text, RuntimeWarning, stacklevel=4)


@contextmanager
def _laid_out(figure: Figure, dots: int) -> Iterator[None]:
    """Lay a figure out once; Matplotlib would do it for each file."""
    engine, before = figure.get_layout_engine(), figure.dpi
    if engine is None:
        yield
        return
    figure.dpi = dots
    engine.execute(figure)
    # None means the layout of matplotlibrc, which must be off: with a layout engine, even
    # Matplotlib's "none", each file is drawn twice.
    no_layout: Any = {"figure.autolayout": False, "figure.constrained_layout.use": False}
    with matplotlib.rc_context(no_layout):
        figure.set_layout_engine(None)
    try:
        yield
    finally:
        figure.set_layout_engine(engine)
        figure.dpi = before
