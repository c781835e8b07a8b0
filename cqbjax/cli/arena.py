"""Enter the arena: run a policy in every task, and compare it with all others.

python scripts/arena.py tasks                             # list the tasks
python scripts/arena.py policy=my_policy.py:Mine          # run in all of them
python scripts/arena.py policy=mine tasks=paper,retries seeds=5    # a first look
python scripts/arena.py verify arena/Mine                 # verify an entry
python scripts/arena.py show                              # the shipped board as a page
python scripts/arena.py board                             # run all policies of the package

A policy is a class in a file below the current folder, or a label of `conf/policy`. The command
writes `arena/Mine/`: the table, the page, pictures and the runs. Only that policy runs; the package
has the results of the others. After an interruption the same command resumes.
"""

import argparse
import functools

from cqbjax.arena.request import KEYS, VERBS, parse_words
from cqbjax.arena.tasks import Composer, list_tasks
from cqbjax.cli._command import SOME_LEFT_OUT, Arguments, run_plain
from cqbjax.cli._compose import compose_jobs, initialize_hydra
from cqbjax.cli._instantiate import make

ARGUMENTS = Arguments(description="Run a policy in every task of the arena.")
ARGUMENTS.add_argument(
    "words", nargs="+", metavar="WORD",
    help=f"{', '.join(VERBS)}, or key=value: {', '.join(KEYS)}",
)  # fmt: skip


def arena(arguments: argparse.Namespace) -> None:
    """List the tasks, show or run the board, verify an entry, or run a policy.

    Raises:
        ValueError: an unknown argument.
        SystemExit: of status `SOME_LEFT_OUT`, if a task was left out.
    """
    verb, argument = parse_words(arguments.words)
    if verb == "tasks":
        for task in list_tasks():
            print(f"{task.name} (version {task.version}): {task.title}\n    {task.description}")
        return
    composer = Composer(lambda words: compose_jobs([words])[0].config, make)
    with initialize_hydra():
        if verb == "verify":
            from cqbjax.arena.verification import verify

            folder, values = argument
            verify(folder, values, composer)
        elif verb == "show":
            from cqbjax.arena.report import show_board
            from cqbjax.experiments import display

            show_board(argument, display.make_console())
        else:
            from cqbjax.arena.entry import enter

            if not enter(argument, composer):
                raise SystemExit(SOME_LEFT_OUT)


main = functools.partial(run_plain, arena, ARGUMENTS)
