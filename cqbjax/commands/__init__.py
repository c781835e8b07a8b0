"""The commands: `cqbjax NAME` where the package is installed, `scripts/NAME.py` in a checkout.

Each module imports what it works with where it works: showing a configuration, refusing a word or
listing the commands then takes a fraction of a second, and not the seconds of JAX and its friends.
"""

import time

# When the command began, but for Python's own start: what a study says of its time counts from it.
BEGUN = time.perf_counter()
