"""Enter the arena: run a policy in every task, and set it beside all others.

python scripts/arena.py tasks                             # which tasks there are
python scripts/arena.py policy=my_policy.py:Mine          # in all of them
python scripts/arena.py policy=mine tasks=paper,retries seeds=5    # a first look
python scripts/arena.py verify arena/Mine                 # is it what it says?
python scripts/arena.py show                              # the board that comes with it, as a page
python scripts/arena.py board                             # run all of the package's own policies

A policy is a class of a file below the current folder, or a label of `conf/policy`. It writes
`arena/Mine/`: the table, the page, a picture and the runs. Only that policy runs: what the others
reached stands beside it where the package has it. The same command again goes on where it was
stopped.
"""

import argparse

from cqbjax.cli import _tasks, _words
from cqbjax.cli._start import Arguments, start_plain

ARGUMENTS = Arguments(description="Run a policy in every task of the arena.")
ARGUMENTS.add_argument(
    "words", nargs="+", metavar="WORD",
    help=f"{', '.join(_words.VERBS)}, or key=value: {', '.join(_words.KEYS)}",
)  # fmt: skip


def main() -> None:
    """Do what the command line asks for."""
    start_plain(arena, ARGUMENTS)


def arena(asked: argparse.Namespace) -> None:
    """List the tasks, show or run the board, verify a folder, or let a policy enter.

    Raises:
        ValueError: naming a word that is none.
        SystemExit: of status `SOME_LEFT_OUT`, where a task was left out.
    """
    verb, told = _words.check(asked.words)
    if verb == "tasks":
        for task in _tasks.listed():
            print(f"{task.name} (version {task.version}): {task.title}\n    {task.says}")
    elif verb == "verify":
        from cqbjax.cli import _verify

        _verify.verify(*told)
    else:
        from cqbjax.cli import _entering

        (_entering.show if verb == "show" else _entering.enter)(told)
