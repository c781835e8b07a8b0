"""Extensions of the site: stored numbers, equations, plain docstrings."""

import os
import sys

import numpy as np
import polars as pl
import pytest
from absent import absent
from pages import REPOSITORY
from tiers import cases

import benchmarks as bench
from cqbjax import datasets

CONF = """
import sys
sys.path[:0] = [{ext!r}]
extensions = ["myst_parser", "math_markup", "plain_docstrings", "stored_results", "paper_items"]
myst_enable_extensions = ["dollarmath"]
exclude_patterns = ["tables"]
"""
TABLE = """```{{stored}} synthetic
:where: K=1 round={round}
:policies: {policies}
:value: throughput
:also: acqb_minus paper_throughput
```
"""


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    """Build a page by the extensions of `docs/`; return its HTML and the warnings."""
    if not os.environ.get("CI"):
        pytest.importorskip("sphinx", reason='the site needs `pip install -e ".[docs]"`')
    from sphinx.testing.util import SphinxTestApp

    def built(text):
        folder = tmp_path_factory.mktemp("site")
        (folder / "conf.py").write_text(CONF.format(ext=str(REPOSITORY / "docs" / "_ext")))
        (folder / "index.md").write_text(f"# Page\n\n{text}")
        app = SphinxTestApp(srcdir=folder)
        try:
            app.build()
            return (folder / "_build" / "html" / "index.html").read_text(), app.warning.getvalue()
        finally:
            app.cleanup()

    yield built
    sys.path[:] = [path for path in sys.path if not path.endswith("_ext")]


@pytest.mark.slow
def test_a_page_shows_the_numbers_that_are_stored(build):
    page, _ = build(TABLE.format(round=1000, policies="acqb random"))
    stored = pl.read_csv(REPOSITORY / "results" / "tables" / "synthetic.csv").filter(
        (pl.col("K") == 1) & (pl.col("round") == 1000)
    )
    rows = {row["policy"]: row for row in stored.to_dicts()}
    for label, name in (("acqb", "ACQB"), ("random", "RAND")):
        ends = (rows[label][f"throughput{end}"] for end in ("", "_low", "_high"))
        middle, low, high = (f"{one:.3f}" for one in ends)
        assert f"<p>{name}</p>" in page and f"<p>{middle} [{low}, {high}]</p>" in page
    assert f"{rows['random']['acqb_minus']:.3f}" in page
    assert "100 seeds; in brackets the 95% interval over seeds" in page and "[–]" not in page


@pytest.mark.slow
def test_a_table_names_its_proxy_dataset(build):
    text = TABLE.format(round=5000, policies="acqb").replace("synthetic", "mmlu_pro")
    text = text.replace("K=1", "K=1 arrival_rate=0.6").replace(
        "value: throughput", "value: gap_mean"
    )
    page, _ = build(text.replace(":also: acqb_minus paper_throughput\n", ""))
    assert "standing in for a dataset with many LLMs" in page


@pytest.mark.slow
def test_a_page_marks_identical_seeds(build):
    text = "```{stored} ablation_servers\n:where: K=1 round=last\n"
    text += ":policies: optimal acqb\n:over: num_servers\n:value: gap_mean throughput\n```\n"
    page, _ = build(text)
    assert (
        page.count("<p>0.0 [–]</p>") == 6 and page.count("[–]: no interval, of a single seed") == 1
    )
    # Of throughput the table stores no interval.
    assert page.count("[–]") == 7


@pytest.mark.slow
def test_a_table_of_other_rows_than_policies_shows_all_of_them(build):
    text = "```{stored} known_answers\n:rows: world\n:over: load\n:value: known simulated\n```\n"
    page, _ = build(text)
    stored = pl.read_csv(REPOSITORY / "results" / "tables" / "known_answers.csv")
    assert page.count("<p>ρ = ") == 2 * stored["load"].n_unique()
    for row in stored.iter_rows(named=True):
        middle, low, high = (f"{row[f'simulated{end}']:.3f}" for end in ("", "_low", "_high"))
        assert f"<p>{row['world']}</p>" in page and f"<p>{middle} [{low}, {high}]</p>" in page
        assert f"<p>{row['known']:.3f}</p>" in page


@pytest.mark.slow
def test_a_page_shows_what_the_benchmark_measured(build):
    page, _ = build("```{measured} peers\n:section: peers\n```\n")
    report = bench.load(REPOSITORY / "results" / "bench" / "peers.json")
    for row in report["sections"]["peers"]:
        for shown in (row["peer"], f"{row['batch_rounds_a_second']:,.0f}"):
            assert f"<p>{shown}</p>" in page
    assert report["machine"]["cpu"] in page and report["finished"] in page
    for name, section, message in (
        ("peers", "start", "no rows of start"),
        ("no", "x", "is missing"),
    ):
        _, warned = build(f"```{{measured}} {name}\n:section: {section}\n```\n")
        assert message in warned


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
    ((":policies: acqb", ":rows: rule"), "has no column rule"),
    (("K=1 round=1000\n:policies: acqb", "K=9"), "`where` leaves no row"),
    ((":value: throughput", ":value: speed"), "has no column speed"),
]


@pytest.mark.parametrize(
    ("change", "message"), cases(UNSTORED, [UNSTORED[3][0], UNSTORED[4][0]], several=True)
)
def test_a_table_that_is_not_stored_is_an_error(build, change, message):
    text = TABLE.format(round=1000, policies="acqb").replace(*change, 1)
    _, warned = build(text)
    assert message in warned


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


@pytest.mark.slow
def test_a_page_shows_the_papers_items_and_what_became_of_them(build):
    from reproduction.paper import catalogue

    page, warned = build("```{states}\n```\n\n```{items} condition assumption\n```\n")
    some = [one for one in catalogue.load_items() if one.kind in ("condition", "assumption")]
    assert page.count("<tr") == len(some) + len(catalogue.STATES) + 2
    assert "Assumption 2" in page and "no kappa below 4 is admissible" in page
    states = [one.state for one in catalogue.load_items()]
    assert f"<p>{states.count('missing')}</p>" in page
    _, warned = build("```{items} sonnet\n```\n")
    assert "the paper has no sonnet" in warned


@pytest.mark.slow
def test_equations_are_drawn_by_the_browser_alone(build):
    page, warned = build("$$\n\\frac{a}{b}\n$$\n\nand $x^\\top\\theta$.\n")
    assert page.count("<math") == 2 and "<mfrac>" in page and "cdn." not in page
    assert "math" not in warned


def test_an_index_of_an_accented_letter_stands_beside_it(build):
    page, _ = build("$\\hat\\theta_j$\n")
    assert "<msub>" in page and "<munder" not in page


@pytest.mark.slow
def test_an_equation_that_cannot_be_drawn_is_warned_of(build):
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


@pytest.mark.slow
def test_tables_of_real_prompts_note_that_the_best_llm_of_each_satisfies(build):
    real = TABLE.replace("synthetic", "mmlu_pro").replace(
        ":also: acqb_minus paper_throughput\n", ""
    )
    real = real.replace("round={round}", "round={round} arrival_rate=0.4")
    page, _ = build(real.format(round=5000, policies="acqb random"))
    sentence = "The best LLM of every prompt of MMLU-Pro satisfies with probability .99"
    assert f"{sentence}, including the 664 of 12,002" in page
    page, _ = build(TABLE.format(round=1000, policies="acqb random"))
    assert "The best LLM of every prompt" not in page
    sys.path.insert(0, str(REPOSITORY / "docs" / "_ext"))
    import stored_results

    assert stored_results._describe_rescaling("MMLU-Pro", "min_max=False") == ""


@pytest.mark.slow
@pytest.mark.parametrize("dataset", ["mmlu_pro", "routerbench", "paretobandit"])
def test_so_many_prompts_as_the_pages_say_have_no_llm_that_is_right(dataset, shared_data):
    sys.path.insert(0, str(REPOSITORY / "docs" / "_ext"))
    import stored_results

    source = datasets.dataset_source(dataset, shared_data)
    if source.table.name not in stored_results.UNSOLVED:
        absent(f"{source.table.name} is not the table that the pages are about")
    nobody = source.table.performance.max(axis=1) <= 0
    unsolved = stored_results.UNSOLVED[source.table.name]
    assert unsolved == (source.table.num_prompts, int(nobody.sum()))
    np.testing.assert_allclose(source.probabilities.max(axis=1), 0.99)
