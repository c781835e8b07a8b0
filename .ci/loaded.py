"""Whether the sweeps of .ci/one are one dataset each: python .ci/loaded.py RESULTS/data."""

import sys

import cqbjax

grid = cqbjax.results.load(f"{sys.argv[1]}/grid")
assert grid.queue_length.dims[0] == "K" and grid.sizes["arrival_rate"] == 2, grid
assert grid.queue_length.notnull().all()
assert cqbjax.results.load(f"{sys.argv[1]}/ablation_phase").sizes["explore_rounds"] == 11
