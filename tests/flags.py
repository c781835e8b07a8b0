"""XLA's flags for tests and tiny studies, printed: `python tests/flags.py`."""

import importlib.metadata
import os

# XLA's older code generator compiles in two thirds of the time, to the same bits. A program in one
# part compiles in nine tenths of the time of one that is split, which helps idle cores alone. A
# version of XLA that does not know a flag ends the process, so flags are set only for the versions
# that CI runs.
QUICKER = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
KNOWN = importlib.metadata.version("jaxlib").startswith("0.10.")


def flags() -> str:
    """Return the flags that are set, and those that compile more quickly where they are known."""
    already = os.environ.get("XLA_FLAGS", "")
    return f"{already} {QUICKER}".strip() if KNOWN and QUICKER not in already else already


if __name__ == "__main__":
    print(flags())
