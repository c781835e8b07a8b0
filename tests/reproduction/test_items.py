"""The paper's figures, tables, algorithms and statements: none is left out, and all can be run."""

import re
import shlex
from collections import Counter

import pytest
from absent import skip_or_fail
from composing import FILES, REPOSITORY

from reproduction.paper import catalogue

STATEMENTS = ("theorem", "lemma", "proposition", "assumption", "condition")
FLOATS = ("figure", "table", "algorithm")
COUNTED = "|".join((*STATEMENTS, "remark"))  # one counter, remarks among them
PREFIX = {"fig": "figure", "tab": "table", "alg": "algorithm"}


def source(shared_data):
    path = shared_data.parent / "paper" / "acqb.tex"
    if not path.is_file():
        skip_or_fail(f"no {path}: the items are compared with the paper's source")
    return path.read_text()


def find_items(text):
    """Return (kind, number, line, labels) of all that the source has, comments left out."""
    lines = [re.sub(r"(?<!\\\\)%.*", "", line) for line in text.splitlines()]
    count, things = 0, []
    for number, line in enumerate(lines, 1):
        labels = re.findall(r"\\label\{([^}]*)\}", line)
        if begun := re.search(rf"\\begin\{{({COUNTED})\}}", line):
            count += 1
            if begun[1] != "remark":
                things.append((begun[1], count, number, labels))
    inside = re.compile(r"sim-(sch-)?k[12]-[qr]$")  # panels of a figure, labelled one by one
    seen = Counter()
    for number, line in enumerate(lines, 1):
        for label in re.findall(r"\\label\{((?:fig|tab|alg):[^}]*)\}", line):
            if not inside.search(label):
                kind = PREFIX[label[:3]]
                seen[kind] += 1
                things.append((kind, seen[kind], number, [label]))
    return things


def captions(text):
    """Count the floats that a source begins, whether they are labelled or not."""
    begun = re.sub(r"(?m)(?<!\\)%.*$", "", text)
    return {
        "figure": len(re.findall(r"\\caption\{", begun)) - _count_captions(begun, "table\\*?")
        - _count_captions(begun, "algorithm"),
        "table": _count_captions(begun, "table\\*?") + begun.count("\\captionof{table}"),
        "algorithm": _count_captions(begun, "algorithm"),
    }  # fmt: skip


def _count_captions(text, environment):
    blocks = re.findall(rf"\\begin\{{{environment}\}}.*?\\end\{{", text, re.DOTALL)
    return len(blocks)


def test_every_item_of_the_paper_is_listed(shared_data):
    there = find_items(source(shared_data))
    listed = catalogue.load_items()
    assert len(there) >= 55
    ours = {(one.kind, one.number): one for one in listed}
    assert len(ours) == len(listed)
    assert ours.keys() == {(kind, number) for kind, number, _, _ in there}
    for kind, number, line, labels in there:
        one = ours[kind, number]
        assert one.line == line, f"{kind} {number} stands at line {line}"
        assert one.label in (labels or [""]), f"{kind} {number} is {labels}"


def test_every_float_of_the_paper_has_a_label_that_is_listed(shared_data):
    """A figure without a label would be seen by its caption alone."""
    kinds = Counter(one.kind for one in catalogue.load_items())
    for kind, many in captions(source(shared_data)).items():
        assert kinds[kind] == many, kind


def test_item_numbers_match_the_compiled_paper():
    numbers = {one.label: one.number for one in catalogue.load_items()}
    assert (numbers["lem:psi"], numbers["thm:regret1"], numbers["thm:regret2"]) == (8, 5, 6)


@pytest.mark.parametrize("one", catalogue.load_items(), ids=lambda one: f"{one.kind}-{one.number}")
def test_an_item_states_its_outcome(one):
    assert one.state in catalogue.STATES and one.what
    done = one.state in ("reproduced", "proxy", "measured", "computed", "tested")
    assert bool(one.command) == done
    assert one.note or one.state != "missing"
    assert one.see or one.state != "drawn"
    if one.see:
        assert (REPOSITORY / one.see).exists(), one.see
    words = shlex.split(one.command)
    if "experiment=" in one.command:
        (name,) = [word.removeprefix("experiment=") for word in words if "experiment=" in word]
        assert name in FILES
        assert (REPOSITORY / words[1]).is_file()
    elif words:
        assert (REPOSITORY / words[-1]).is_file(), one.command
