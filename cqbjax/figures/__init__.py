"""Figures of stored results, drawn with Matplotlib."""

from cqbjax.figures.curves import draw_curves
from cqbjax.figures.files import save_figure, save_paper_figure
from cqbjax.figures.sweeps import draw_over_keys
from cqbjax.figures.users import draw_cost_quality, draw_times
from cqbjax.results.policy_styles import Style, find_style

__all__ = [
    "Style", "draw_cost_quality", "draw_curves", "draw_over_keys", "draw_times", "find_style",
    "save_figure", "save_paper_figure",
]  # fmt: skip
