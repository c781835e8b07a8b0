"""What the repository holds: small results, a citation that is one, a package that imports."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from absent import skip_or_fail

import cqbjax

ROOT = Path(__file__).resolve().parent.parent
MOST_OF_RESULTS, MOST_OF_PAGE = 8_000_000, 2_000_000  # bytes
MOST_TERMS = 40  # of the glossary


@pytest.fixture(scope="module")
def committed_files() -> list[Path]:
    """The files of `results/` that git knows, and that are there."""
    done = subprocess.run(
        ["git", "ls-files", "-z", "results"], cwd=ROOT, capture_output=True, text=True
    )
    if done.returncode:
        skip_or_fail("no checkout of git")
    there = [ROOT / name for name in done.stdout.split("\0") if name]
    return [path for path in there if path.is_file()]


def test_committed_results_are_small(committed_files):
    assert 0 < sum(path.stat().st_size for path in committed_files) <= MOST_OF_RESULTS


def test_no_pdf_is_committed(committed_files):
    assert committed_files and not [path.name for path in committed_files if path.suffix == ".pdf"]


def test_committed_report_page_is_small(committed_files):
    (page,) = [path for path in committed_files if path.name == "index.html"]
    assert page.stat().st_size <= MOST_OF_PAGE


def test_citation_file_is_complete():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["cff-version"] == "1.2.0" and cited["type"] == "software"
    assert cited["message"] and cited["title"] and cited["authors"][0]["name"]
    (paper,) = cited["references"]
    assert paper["title"] in " ".join((ROOT / "docs/start/index.md").read_text().split())
    assert all(author.keys() == {"given-names", "family-names"} for author in paper["authors"])
    assert "version" not in cited  # it stands in one place


def test_version_is_defined_once():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" not in project["project"]
    assert project["tool"]["hatch"]["version"]["path"] == "cqbjax/__init__.py"
    assert re.fullmatch(r"\d+\.\d+\.\d+", cqbjax.__version__)


@pytest.mark.slow
def test_results_module_can_be_imported_first():
    code = "import cqbjax.results; print(cqbjax.results.load.__name__, cqbjax.__version__)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.split() == ["load", cqbjax.__version__], done.stderr


def test_the_glossary_is_short_and_defines_each_term_once():
    text = (ROOT / "docs/reference/glossary.md").read_text()
    rows = re.findall(r"^\| ([a-z -]+) \| (.*) \|$", text, re.MULTILINE)[1:]
    terms = [term for term, _ in rows]
    assert len(terms) == len(set(terms)) and 10 < len(terms) <= MOST_TERMS
    assert all(text[-1] in ".)" and text.count(". ") == 0 for _, text in rows)
