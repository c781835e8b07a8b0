"""What `-h` prints of a command, made from the comments of its `config.yaml`."""

import re
import textwrap
from pathlib import Path

from cqbjax.cli._compose import list_choices

WIDTH = 79
# Command -> what it does, and examples.
EXAMPLES = {
    "run": """\
usage: cqbjax run [-m] [-v] [GROUP=CHOICE ...] [KEY=VALUE ...]
  cqbjax run experiment=synthetic num_seeds=20          a study of the paper
  cqbjax run policy=[acqb,random] K=2 name=mine         your own
  cqbjax run -m alpha_scale=0.1,0.3 K=1,2 name=grid     every combination
  cqbjax run experiment=synthetic dry_run=true          what it would take
  cqbjax run experiment=synthetic --cfg job             every key and its value
-m runs all combinations of a,b,c; -v prints memory, compiling and speed.
Choices of files (an unknown one, such as policy=x, lists them all):""",
    "prepare_data": """\
usage: cqbjax prepare_data dataset=NAME [KEY=VALUE ...]
  cqbjax prepare_data dataset=routerbench               from the Hugging Face hub
  cqbjax prepare_data dataset=compact source=FILE name=mine   your own table""",
}


def format_help(command: str, folder: Path) -> str:
    """Return the usage of a command, its groups of choices, and its keys.

    Args:
        command: a key of `EXAMPLES`.
        folder: folder of the command's `config.yaml`. Keys under a heading are listed by name,
            others with their comments.
    """
    text = (folder / "config.yaml").read_text().split("\nhydra:")[0]
    lines = [EXAMPLES[command]]
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
