"""A part of the product of policies, sources, K and seeds compiles: see `product.py`."""

import itertools
import subprocess
import sys

import product
import pytest

# Sources whose data are there: the others are refused before anything compiles.
SOURCES = (*product.DRAWN, "paretobandit", "routerbench", "mmlu_pro")


def test_product_subset_covers_every_policy_router_and_source():
    cases = product.part(SOURCES)
    assert {*product.POLICIES, *product.ROUTERS} <= {case.policy for case in cases}
    assert {case.source for case in cases} == {*SOURCES}
    shapes = set(itertools.product(product.SIZES, product.SEEDS))
    assert {(case.size, case.seeds) for case in cases} == shapes


@pytest.mark.slow
def test_programs_of_the_product_subset_compile_without_ambiguous_names(shared_data, tmp_path):
    done = subprocess.run(
        [sys.executable, product.__file__, f"data_dir={shared_data}", f"cache_dir={tmp_path}",
         "--part", "--workers", "1", "--folder", str(tmp_path), "--sources", *SOURCES],
        capture_output=True, text=True, check=True, cwd=product.REPOSITORY,
    )  # fmt: skip
    _, *others, counts = done.stdout.splitlines()
    assert not [line for line in others if " refused: " not in line], done.stdout
    assert int(counts.partition(" compiled")[0]) >= len(product.POLICIES) / 2, done.stdout
