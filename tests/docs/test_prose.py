"""Mechanical checks of prose: short lines, and links with targets."""

import json
import re

import pytest
from markdown_it import MarkdownIt
from pages import PAGES, REPOSITORY

MARKDOWN = [page for page in PAGES if page.suffix == ".md"]
# Kept as they were written.
NOTEBOOK = REPOSITORY / "docs" / "notebook"
PAGES_OUTSIDE_NOTEBOOK = [page for page in MARKDOWN if page.parent != NOTEBOOK]
FIGURE = re.compile(r"^```\{(?:figure|image|literalinclude)\} (\S+)", re.MULTILINE)


@pytest.mark.parametrize("page", PAGES_OUTSIDE_NOTEBOOK, ids=lambda page: page.stem)
def test_lines_of_prose_are_short(page):
    lines = page.read_text().splitlines()
    code = {
        number
        for token in MarkdownIt().parse(page.read_text())
        if token.type == "fence"
        for number in range(*token.map)
    }
    for number, line in enumerate(lines):
        if number not in code and not line.startswith(("|", "![", "<")):
            assert len(line) <= 100, f"{page.name}, line {number + 1} has {len(line)} letters"


@pytest.mark.parametrize("page", MARKDOWN, ids=lambda page: page.stem)
def test_rows_of_tables_have_lines_of_their_own(page):
    rules = re.findall(r"^.*\|:?-{3,}:?\|.*$", page.read_text(), re.MULTILINE)
    assert all(re.fullmatch(r"\s*\|[-:| ]+", line) for line in rules), rules


@pytest.mark.parametrize("page", MARKDOWN, ids=lambda page: page.stem)
def test_linked_files_and_figures_exist(page):
    text = page.read_text()
    targets = [m[1] for m in re.finditer(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)", text)]
    targets += [m[1] for m in re.finditer(r'<img [^>]*src="([^"]+)"', text)] + FIGURE.findall(text)
    for target in targets:
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_readme_introduction_fits_the_screen():
    first, rest = (REPOSITORY / "README.md").read_text().split("\n## What was found", 1)
    assert len(first.splitlines()) <= 52 and rest
    for part in (
        "arena.png",
        "## Two commands",
        "cqbjax.sweep",
        "docs/start/index.md",
    ):
        assert part in first


def test_a_notebook_is_stored_without_outputs():
    notebooks = [page for page in PAGES if page.suffix == ".ipynb"]
    assert notebooks
    for page in notebooks:
        for cell in json.loads(page.read_text())["cells"]:
            assert not cell.get("outputs") and not cell.get("execution_count"), page.name


def test_notebook_pages_are_listed_in_the_index():
    listed = (NOTEBOOK / "index.md").read_text()
    for page in NOTEBOOK.glob("[!i]*.md"):
        assert f"[{page.stem}]({page.name})" in listed
