"""The console command: `cqbjax NAME [words]` runs `python scripts/NAME.py [words]`."""

import importlib
import sys

import cqbjax
from cqbjax.cli import end_quietly
from cqbjax.core.inputs import suggest_names

# Described here and not in the modules, so that listing the commands does not import them.
COMMANDS = {
    "run": "run a study; store, draw and print its results",
    "report": "draw the figures and tables of stored studies again",
    "arena": "run a policy in every task, and compare it with all others",
    "aggregate": "turn a sweep's result into a tidy table, and a figure over its keys",
    "stored": "list what is stored of an experiment, and delete outdated results",
    "log": "describe a log of requests, and fit a scenario to it",
    "prepare_data": "build a dataset's table and embeddings, once",
}


@end_quietly()
def main() -> None:
    """Run the command that the first argument names, or list all commands.

    Raises:
        SystemExit: of status 2, for an unknown command.
    """
    name, *words = sys.argv[1:] or ["help"]
    if name in ("-h", "--help", "help"):
        if not words:
            print("usage: cqbjax COMMAND [WORD ...], such as: cqbjax run experiment=synthetic\n")
            print("\n".join(f"  {command:<16} {text}" for command, text in COMMANDS.items()))
            print("\ncqbjax COMMAND -h describes a command, cqbjax --version prints the version.")
            return
        name, words = words[0], ["--help"]
    if name in ("-V", "--version"):
        print(f"cqbjax {cqbjax.__version__}")
        return
    name = name.replace("-", "_")
    if name not in COMMANDS:
        suggestion = suggest_names(name, list(COMMANDS))
        print(f"error: {name} is no command{suggestion}", file=sys.stderr)
        raise SystemExit(2)
    sys.argv = [f"cqbjax {name}", *words]
    importlib.import_module(f"cqbjax.cli.{name}").main()


if __name__ == "__main__":
    main()
