"""The pages that people read, taken apart: blocks of code, and the commands in them."""

import json
import os
import subprocess
from pathlib import Path
from typing import NamedTuple

from markdown_it import MarkdownIt

REPOSITORY = Path(__file__).resolve().parents[1]
PAGES = [
    REPOSITORY / "README.md",
    *sorted(
        page
        for ending in ("md", "ipynb")
        for page in (REPOSITORY / "docs").rglob(f"*.{ending}")
        if not {"_build", "tables", "jupyter_execute"} & set(page.parts)
    ),
]
NAMES = [str(page.relative_to(REPOSITORY)) for page in PAGES]
# Programs that bash finds in a page's commands; each writes down its words and does nothing.
PROGRAMS = ("python", "python3", "pip", "cqbjax", "pytest", "sphinx-build")
STUB = (
    '#!/bin/bash\nprintf "%s\\0" "$(basename "$0")" "$@" >> "$WORDS"\nprintf "\\n\\0" >> "$WORDS"\n'
)


class Block(NamedTuple):
    """A block of code.

    Attributes:
        page: where it stands.
        line: its first line there, from 1.
        language: `python`, `bash`, `yaml`, or empty.
        file: the name under which a reader saves it (its caption), or empty.
        text: the code.
        note: the comment just before it, `run: ...`, without its marks; or empty.
    """

    page: Path
    line: int
    language: str
    file: str
    text: str
    note: str


def blocks(page: Path) -> list[Block]:
    """Return the blocks of a page in their order; of a notebook its cells."""
    if page.suffix == ".ipynb":
        cells = json.loads(page.read_text())["cells"]
        code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
        return [Block(page, number, "python", "", text, "") for number, text in enumerate(code, 1)]
    fenced, note = [], ""
    for token in MarkdownIt().parse(page.read_text()):
        if token.type == "fence" and not _is_markup(token.info):
            language, file, text = _read(token.info, token.content)
            fenced.append(Block(page, token.map[0] + 2, language, file, text, note))
        if token.type == "html_block" and token.content.startswith("<!--"):
            note = token.content.strip().removeprefix("<!--").removesuffix("-->").strip()
        elif token.level == 0:
            note = ""
    return fenced


def _is_markup(info: str) -> bool:
    """Tell whether a fence is a directive of the site, such as a figure, and no code."""
    return info.startswith("{") and not info.startswith("{code-block}")


def _read(info: str, text: str) -> tuple[str, str, str]:
    file, lines = "", text.splitlines(keepends=True)
    while info.startswith("{") and lines and lines[0].startswith(":"):
        option = lines.pop(0)
        if option.startswith(":caption:"):
            file = option.removeprefix(":caption:").strip()
    return info.removeprefix("{code-block}").strip(), file, "".join(lines)


def commands(block: Block, folder: Path) -> list[list[str]]:
    """Let bash read a block, with programs that only write down how they were called.

    So variables, braces, quotes and `&&` mean here what they mean to a reader.

    Args:
        block: of bash, or of no language.
        folder: an empty one.

    Returns:
        The words of each call.
    """
    for place in (folder / "bin", folder / ".venv" / "bin"):
        place.mkdir(parents=True, exist_ok=True)
        for program in PROGRAMS:
            (place / program).write_text(STUB)
            (place / program).chmod(0o755)
    (folder / "results" / "tables").mkdir(parents=True, exist_ok=True)
    words = folder / "words"
    words.unlink(missing_ok=True)
    environment = {
        "PATH": f"{folder / 'bin'}{os.pathsep}/usr/bin{os.pathsep}/bin",
        "WORDS": str(words),
    }
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block.text],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    assert done.returncode == 0, f"{block.page}, line {block.line}: {done.stderr}"
    calls: list[list[str]] = [[]]
    for word in words.read_text().split("\0")[:-1] if words.exists() else ():
        if word == "\n":
            calls.append([])
        else:
            calls[-1].append(word)
    return calls[:-1]
