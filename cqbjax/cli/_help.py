"""What `-h` prints of a command, made from the comments in its `config.yaml`."""

import itertools
import re
import textwrap
from pathlib import Path

from cqbjax.cli._compose import list_choices

WIDTH = 79


def format_help(folder: Path) -> str:
    """Return the usage of a command, its groups of choices, and its keys.

    Args:
        folder: folder of the command's `config.yaml`, which begins with the usage. Keys under a
            heading are listed by name, others with their comments.
    """
    text = (folder / "config.yaml").read_text().split("\nhydra:")[0]
    usage = itertools.takewhile(lambda line: line.startswith("#"), text.splitlines())
    lines = [line.removeprefix("# ") for line in usage]
    for group, comment in re.findall(r"^  - (\w+): .*?# (.+)", text, re.MULTILINE):
        comment = comment.partition(": ")[0]
        choices = f"{comment}: {', '.join(list_choices(group))}"
        lines.append(f"  {group:<11} {choices if len(choices) <= WIDTH - 14 else comment}")
    for section in text.split("\n\n")[1:]:
        heading = re.match(r"# (.+)\n", section)
        keys = re.findall(r"^( *)(\w+):[^#\n]*(?:# (.+))?", section, re.MULTILINE)
        if heading and keys:
            names = ", ".join(key for indent, key, _ in keys if not indent)
            lines.append(textwrap.fill(f"{heading[1]}: {names}", WIDTH, subsequent_indent="    "))
        elif keys:
            for indent, key, comment in keys:
                line = f"  {indent}{key:<23} {comment}"
                lines.append(textwrap.fill(line, WIDTH, subsequent_indent=" " * 8))
    lines.append(f"All keys with their comments: {folder / 'config.yaml'}")
    return "\n".join(lines)
