"""What figures share: numbers written on colours, and a figure as two files, a PNG and a PDF."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from cqbjax.core.files import write_atomic

DOTS_AN_INCH = 150
COLOURS = 256  # of a PNG: a third of the bytes of all colours, and what is seen is the same
PDF_METADATA: dict[str, Any] = {"CreationDate": None, "Creator": None, "Producer": None}


def write_numbers(
    panel: Axes, values: np.ndarray, middle: float, below: str, above: str, size: Any = "x-small"
) -> None:
    """Write each number in its cell, in one colour below the middle and in another above."""
    for (row, column), value in np.ndenumerate(values):
        if np.isfinite(value):
            color = below if value < middle else above
            panel.text(
                column, row, f"{value:.3g}", ha="center", va="center", color=color, fontsize=size
            )


def save(figure: Figure, stem: Path, dots: int = DOTS_AN_INCH) -> tuple[Path, Path]:
    """Write `stem`.png (of so many dots an inch, 256 colours) and `stem`.pdf, each whole or not.

    Both are laid out alike, by the letters' sizes in the PNG. Neither holds a date, so that the
    same figure gives the same bytes.
    """
    stem = Path(stem)
    png, pdf = (stem.with_name(f"{stem.name}.{kind}") for kind in ("png", "pdf"))
    # Type 42 keeps the text of a PDF selectable.
    with _laid_out(figure, dots), matplotlib.rc_context({"pdf.fonttype": 42}):
        write_atomic(png, png_of(figure, dots))
        buffer = io.BytesIO()
        figure.savefig(buffer, format="pdf", dpi=dots, metadata=PDF_METADATA)
        write_atomic(pdf, buffer.getvalue())
    return png, pdf


def png_of(figure: Figure, dots: int = DOTS_AN_INCH) -> bytes:
    """Return a figure as a PNG of so many dots an inch, with its colours in a palette."""
    drawn, buffer = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png", dpi=dots, metadata={"Software": None})
    # Refined by k-means: large pale areas keep their tint, edges of letters may lose a shade.
    reduced = Image.open(drawn).convert("RGB").quantize(COLOURS, Image.Quantize.MEDIANCUT, kmeans=4)
    reduced.save(buffer, format="PNG", optimize=True, dpi=(dots, dots))
    return buffer.getvalue()


@contextmanager
def _laid_out(figure: Figure, dots: int) -> Iterator[None]:
    """Lay a figure out once; by itself matplotlib would for each file."""
    engine, before = figure.get_layout_engine(), figure.dpi
    if engine is None:
        yield
        return
    figure.dpi = dots
    engine.execute(figure)
    # None stands for what matplotlibrc says, and that must be no layout: with any, even
    # matplotlib's "none", each file is drawn twice.
    no_layout: Any = {"figure.autolayout": False, "figure.constrained_layout.use": False}
    with matplotlib.rc_context(no_layout):
        figure.set_layout_engine(None)
    try:
        yield
    finally:
        figure.set_layout_engine(engine)
        figure.dpi = before
