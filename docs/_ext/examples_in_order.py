"""The order of the examples, as listed in `docs/examples/README.md`."""

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "examples" / "README.md"
NAMES = re.findall(r"^/gallery/(\w+)$", PAGE.read_text(), re.MULTILINE)


def place(path: str) -> int:
    """Return the position of an example."""
    return NAMES.index(Path(path).stem)
