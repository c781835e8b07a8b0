"""Stored numbers in the pages; extensions of the site: equations, plain docstrings."""

import os
import re
import sys

import numpy as np
import polars as pl
import pytest
from absent import skip_or_fail
from pages import PAGES, REPOSITORY
from tiers import cases

import benchmarks as bench
from cqbjax import datasets

CONF = """
import sys
sys.path[:0] = [{ext!r}]
extensions = ["myst_parser", "math_markup", "plain_docstrings", "stored_results"]
myst_enable_extensions = ["dollarmath"]
exclude_patterns = ["tables"]
"""
FILLED = [
    page
    for page in PAGES
    if "\n<!-- end -->" in page.read_text() and page.parent.parent != REPOSITORY
]
TABLE = """<!-- stored synthetic
where: K=1 round={round}
policies: {policies}
value: throughput
also: acqb_minus paper_throughput
-->

<!-- end -->
"""


@pytest.fixture
def fill(monkeypatch):
    """Return a function that fills the tables of a page of `docs/results/`."""
    monkeypatch.syspath_prepend(str(REPOSITORY / "docs" / "_ext"))
    import page_tables

    return lambda text, name="page.md": page_tables.fill(
        text, REPOSITORY / "docs" / "results" / name
    )


@pytest.mark.parametrize("page", FILLED, ids=lambda page: page.stem)
def test_tables_of_pages_match_the_stored_ones(page, fill):
    text = page.read_text()
    message = "has old tables: write them by `python docs/_ext/page_tables.py`"
    assert fill(text, page) == text, f"{page.name} {message}"


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    """Build a page by the extensions of `docs/`; return its HTML and the warnings."""
    if not os.environ.get("CI"):
        pytest.importorskip("sphinx", reason='the site needs `pip install -e ".[docs]"`')
    from sphinx.testing.util import SphinxTestApp

    def build_page(text):
        folder = tmp_path_factory.mktemp("site")
        (folder / "conf.py").write_text(CONF.format(ext=str(REPOSITORY / "docs" / "_ext")))
        (folder / "index.md").write_text(f"# Page\n\n{text}")
        app = SphinxTestApp(srcdir=folder)
        try:
            app.build()
            return (folder / "_build" / "html" / "index.html").read_text(), app.warning.getvalue()
        finally:
            app.cleanup()

    yield build_page
    sys.path[:] = [path for path in sys.path if not path.endswith("_ext")]


def test_pages_show_the_stored_numbers(fill):
    page = fill(TABLE.format(round=1000, policies="acqb random"))
    stored = pl.read_csv(REPOSITORY / "results" / "tables" / "synthetic.csv").filter(
        (pl.col("K") == 1) & (pl.col("round") == 1000)
    )
    rows = {row["policy"]: row for row in stored.to_dicts()}
    for label, name in (("acqb", "ACQB"), ("random", "random query and LLM")):
        ends = (rows[label][f"throughput{end}"] for end in ("", "_low", "_high"))
        middle, low, high = (f"{one:.3f}" for one in ends)
        assert f"\n| {name} | {middle} [{low}, {high}] |" in page
    assert f"{rows['random']['acqb_minus']:.3f}" in page
    assert "100 seeds; in brackets the 95% interval over seeds" in page and "[–]" not in page
    assert fill(page) == page


def test_a_table_names_its_proxy_dataset(fill):
    text = TABLE.format(round=5000, policies="acqb").replace("synthetic", "mmlu_pro")
    text = text.replace("K=1", "K=1 arrival_rate=0.6").replace("throughput\nalso", "gap_mean\nalso")
    page = fill(text.replace("also: acqb_minus paper_throughput\n", ""))
    assert "standing in for a dataset with many LLMs" in page.replace("\n", " ")


def test_a_page_marks_identical_seeds(fill):
    text = "<!-- stored ablation_servers\nwhere: K=1 round=last\n"
    text += (
        "policies: optimal acqb\nover: num_servers\nvalue: gap_mean throughput\n-->\n<!-- end -->"
    )
    page = fill(text)
    assert page.count("| 0.0 [–] |") == 6 and page.count("[–]: no interval, for a single seed") == 1
    # Of throughput the table stores no interval.
    assert page.count("[–]") == 7


def test_tables_without_policies_show_all_rows(fill):
    text = "<!-- stored known_answers\nrows: scenario\nover: load\nvalue: known simulated\n-->\n"
    page = fill(f"{text}<!-- end -->")
    stored = pl.read_csv(REPOSITORY / "results" / "tables" / "known_answers.csv")
    assert page.count("| ρ = ") == 2 * stored["load"].n_unique()
    for row in stored.iter_rows(named=True):
        middle, low, high = (f"{row[f'simulated{end}']:.3f}" for end in ("", "_low", "_high"))
        assert f"\n| {row['scenario']} |" in page and f"| {middle} [{low}, {high}] |" in page
        assert f"| {row['known']:.3f} |" in page


def test_pages_show_the_measured_benchmarks(fill):
    page = fill("<!-- measured peers peers -->\n<!-- end -->")
    report = bench.load(REPOSITORY / "results" / "bench" / "peers.json")
    for row in report["sections"]["peers"]:
        for shown in (row["peer"], f"{row['batch_rounds_a_second']:,.0f}"):
            assert f"| {shown} |" in page
    assert report["machine"]["cpu"] in page.replace("\n", " ") and report["finished"] in page
    for name, section, message in (
        ("peers", "start", "no rows of start"),
        ("no", "x", "is missing"),
    ):
        with pytest.raises(ValueError, match=message):
            fill(f"<!-- measured {name} {section} -->\n<!-- end -->")


def test_readme_has_the_stored_table_of_peers():
    """Update it by `bench.table(bench.load("results/bench/peers.json"), "peers")`."""
    report = bench.load(REPOSITORY / "results" / "bench" / "peers.json")
    readme = (REPOSITORY / "README.md").read_text()
    assert not report["quick"] and bench.table(report, "peers") in readme
    assert f"two cores of an {report['machine']['cpu']}" in readme


UNSTORED = [
    (("synthetic", "nothing"), "no stored table results/tables/nothing.csv"),
    (("acqb", "nobody"), "has no such row: nobody"),
    (("round=1000", "round=999"), "has no such row: acqb"),
    (("K=1 ", ""), "`where` leaves 2 rows of acqb"),
    (("K=1", "k=1"), "has no column k"),
    (("policies: acqb", "rows: rule"), "has no column rule"),
    (("K=1 round=1000\npolicies: acqb", "K=9"), "`where` leaves no row"),
    (("value: throughput", "value: speed"), "has no column speed"),
    (("value: throughput", "values: throughput"), "synthetic: no option values"),
]


@pytest.mark.parametrize(
    ("change", "message"), cases(UNSTORED, [UNSTORED[3][0], UNSTORED[4][0]], several=True)
)
def test_missing_tables_raise_an_error(fill, change, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        fill(TABLE.format(round=1000, policies="acqb").replace(*change, 1))


def test_boosted_search_pages_exist():
    scorer = (REPOSITORY / "docs" / "_static" / "scorer.js").read_text()
    named = re.findall(r'^  "?([\w/]+)"?: "', scorer, re.MULTILINE)
    assert len(named) > 10
    assert all((REPOSITORY / "docs" / f"{name}.md").is_file() for name in named)


def test_formulas_of_docstrings_exist_and_render(build):
    sys.path.insert(0, str(REPOSITORY / "docs" / "_ext"))
    import plain_docstrings
    from docutils.utils.math.latex2mathml import tex2mathml

    texts = [path.read_text() for path in (REPOSITORY / "cqbjax").rglob("*.py")]
    for plain, tex in plain_docstrings.FORMULAS.items():
        pattern = plain_docstrings.find_formula(plain)
        assert any(pattern.search(text) for text in texts), plain
        for part in re.split(r"`[^`]+`", tex):
            assert "<math" in tex2mathml(part), part
    drawn = plain_docstrings.draw_formulas("Return R(x, S) =\n    sum_S p_j(x, S) of x.")
    assert drawn == f"Return :math:`{plain_docstrings.FORMULAS['R(x, S) = sum_S p_j(x, S)']}` of x."


def test_links_to_stored_tables_lead_to_their_pages(build):
    sys.path.insert(0, str(REPOSITORY / "docs" / "_ext"))
    import stored_results

    source = ["[a](../../results/tables/synthetic.md) and [b](../results/bench/x.md)"]
    stored_results._fit_to_site(None, "page", source)
    assert source == ["[a](/tables/synthetic.md) and [b](/tables/x.md)"]


def test_intervals_stay_on_one_line_and_names_may_be_broken(build):
    sys.path.insert(0, str(REPOSITORY / "docs" / "_ext"))
    import stored_results

    source = ["| a.b_c | gap |\n|---|---|\n| x_y | 0.5 [-1.5, 2] |\n"]
    stored_results._fit_to_site(None, "tables/x", source)
    assert (
        "| a.<wbr>b_<wbr>c |" in source[0]
        and "| x_<wbr>y | 0.5 [-1.5,\N{NO-BREAK SPACE}2] |" in source[0]
    )
    code = ["```python\nsweep(arrival_rate=[0.6, 0.7])\n```\n"]
    stored_results._fit_to_site(None, "page", code)
    assert "[0.6, 0.7]" in code[0], "code stays code"


def test_page_lists_the_papers_items_with_their_outcome(fill):
    from reproduction.paper import catalogue

    kinds = ("condition", "assumption")
    page = fill(f"<!-- states -->\n<!-- end -->\n<!-- items {' '.join(kinds)} -->\n<!-- end -->")
    some = [one for one in catalogue.load_items() if one.kind in kinds]
    assert page.count("\n| ") == len(some) + len(catalogue.STATES) + 2
    assert "| Assumption 2 |" in page and "no kappa below 4 is admissible" in page
    states = [one.state for one in catalogue.load_items()]
    assert f"| {states.count('proxy')} |" in page
    with pytest.raises(ValueError, match="the paper has no sonnet"):
        fill("<!-- items sonnet -->\n<!-- end -->")


@pytest.mark.slow
def test_equations_are_rendered_as_mathml(build):
    page, warned = build("$$\n\\frac{a}{b}\n$$\n\nand $x^\\top\\theta$.\n")
    assert page.count("<math") == 2 and "<mfrac>" in page and "cdn." not in page
    assert "math" not in warned


def test_subscripts_of_accented_letters_are_placed_beside_them(build):
    page, _ = build("$\\hat\\theta_j$\n")
    assert "<msub>" in page and "<munder" not in page


@pytest.mark.slow
def test_invalid_equations_cause_a_warning(build):
    page, warned = build("$\\nothing{x}$\n")
    assert "index.md:3: WARNING: equation" in warned and "nothing" in warned
    assert "<math" not in page


def test_docstrings_are_plain_text(build):
    del build
    sys.path.insert(0, str(REPOSITORY / "docs" / "_ext"))
    import plain_docstrings

    lines = [
        "|W'x| of theta_ and a*b, `x_` as *it* is.",
        "",
        "Letters:",
        "",
        "    T_  rounds",
        "",
        "x_",
    ]
    plain_docstrings._process(None, "", "", None, None, lines)
    assert lines[0] == "\\|W'x\\| of theta\\_ and a\\*b, `x_` as *it* is."
    assert lines[2:] == ["Letters::", "", "    T_  rounds", "", "x\\_"]


def test_tables_of_real_prompts_note_that_the_best_llm_of_each_satisfies(fill):
    real = TABLE.replace("synthetic", "mmlu_pro").replace("also: acqb_minus paper_throughput\n", "")
    real = real.replace("round={round}", "round={round} arrival_rate=0.4")
    page = fill(real.format(round=5000, policies="acqb random")).replace("\n", " ")
    sentence = "the best LLM of each prompt of MMLU-Pro satisfies the user with probability .99"
    assert f"{sentence}, even on the 664 of 12,002" in page
    page = fill(TABLE.format(round=1000, policies="acqb random"))
    assert "satisfies the user" not in page.replace("\n", " ")
    import page_tables

    assert page_tables.describe_rescaling("MMLU-Pro", "min_max=False") == ""


@pytest.mark.slow
@pytest.mark.parametrize("dataset", ["mmlu_pro", "routerbench", "paretobandit"])
def test_pages_state_how_many_prompts_have_no_correct_llm(dataset, shared_data):
    sys.path.insert(0, str(REPOSITORY / "docs" / "_ext"))
    import page_tables

    source = datasets.dataset_source(dataset, shared_data)
    if source.table.name not in page_tables.UNSOLVED:
        skip_or_fail(f"{source.table.name} is not the table that the pages are about")
    nobody = source.table.performance.max(axis=1) <= 0
    unsolved = page_tables.UNSOLVED[source.table.name]
    assert unsolved == (source.table.num_prompts, int(nobody.sum()))
    np.testing.assert_allclose(source.probabilities.max(axis=1), 0.99)
