"""Templates of pages, and the styles that all pages have."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jinja2

HERE = Path(__file__).resolve().parent


def styles() -> str:
    """Return the styles."""
    return (HERE / "page.css").read_text()


def filled(
    template: Path, filters: dict[str, Callable[..., Any]] | None = None, **given: Any
) -> str:
    """Return a template, filled; what it names and is not given raises."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(template.parent),
        autoescape=jinja2.select_autoescape(["j2", "html"]),
        trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    environment.filters |= filters or {}
    return environment.get_template(template.name).render(**given)
