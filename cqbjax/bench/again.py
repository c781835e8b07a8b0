"""Compile one case with a cache that another process filled, and print the seconds."""

import json
import sys
from pathlib import Path

from cqbjax.bench import cases
from cqbjax.bench.measure import compile_again
from cqbjax.core import backend

if __name__ == "__main__":
    quick, number, cache = json.loads(sys.argv[1])
    backend.configure(Path(cache))
    print(compile_again(cases.compiled(quick)[number]))
