"""The order of the examples: the one in which `docs/examples/README.md` lists them."""

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "examples" / "README.md"
NAMES = re.findall(r"^/gallery/(\w+)$", PAGE.read_text(), re.MULTILINE)


def place(path: str) -> int:
    """Return where an example stands."""
    return NAMES.index(Path(path).stem)
