"""XLA's flags for tests and tiny studies, printed: `python tests/flags.py`."""

import importlib.metadata
import os

# XLA's older code generator compiles in two thirds of the time, to the same bits. A version of XLA
# that does not know a flag ends the process, so only the versions that CI runs are told.
OLDER = "--xla_cpu_use_fusion_emitters=false"
KNOWN = importlib.metadata.version("jaxlib").startswith("0.10.")


def flags() -> str:
    """Return the flags that are set, and the older code generator where it is known."""
    already = os.environ.get("XLA_FLAGS", "")
    return f"{already} {OLDER}".strip() if KNOWN and OLDER not in already else already


if __name__ == "__main__":
    print(flags())
