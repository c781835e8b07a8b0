"""Read a log of requests to LLMs, and say what is in it.

python scripts/log.py describe requests.jsonl
python scripts/log.py describe example    # a made-up log that ships with the package
python scripts/log.py describe requests.csv "columns={time: created_at, model: llm}" max_bad=0.2

The file has JSON lines, a JSON array, CSV or Parquet, gzipped or not. Nothing is sent or stored.
Keys: columns (what a request has: the name of its field), models (an LLM: the name that it counts
as), max_bad (the share of rows that may be unusable), threshold and max_gap (a retry has a prompt
of at least this cosine, and comes within this many seconds of the answer).
"""

import argparse
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from cqbjax.cli._command import Arguments, run_plain
from cqbjax.core.inputs import is_number, suggest_names

VERBS = ("describe",)
# Keys of every verb, and what each must be.
KEYS = {
    "columns": "a mapping, such as {time: created_at}", "models": "a mapping, such as {old: new}",
    "max_bad": "a share in [0, 1]", "threshold": "a cosine in (0, 1]",
    "max_gap": "seconds, above 0",
}  # fmt: skip

ARGUMENTS = Arguments(description="Read a log of requests to LLMs, and say what is in it.")
ARGUMENTS.add_argument("verb", choices=VERBS, help="describe a log")
ARGUMENTS.add_argument("file", type=Path, help="the log, or `example`")
ARGUMENTS.add_argument("words", nargs="*", metavar="KEY=VALUE", help=", ".join(KEYS))


def parse_keys(words: Sequence[str], keys: Mapping[str, str] = KEYS) -> dict[str, Any]:
    """Return key -> value of `key=value` words; values are YAML.

    Raises:
        ValueError: an unknown key, or a value of a wrong type.
    """
    values: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or key not in keys:
            raise ValueError(f"{word} is unknown here{suggest_names(key, list(keys))}")
        try:
            values[key] = yaml.safe_load(text)
        except yaml.YAMLError:
            values[key] = None
        value, allowed = values[key], keys[key]
        if allowed.startswith("a mapping"):
            fine = isinstance(value, dict)
        else:
            most = float("inf") if "seconds" in allowed else 1
            fine = is_number(value) and 0 <= value <= most and (value > 0 or "[0" in allowed)
        if not fine:
            raise ValueError(f"{word} must be {allowed}")
    return values


def run_log(arguments: argparse.Namespace) -> None:
    """Describe a log.

    Raises:
        ValueError: a wrong argument, or a log that cannot be read.
    """
    keys = parse_keys(arguments.words)
    from rich.console import Console

    from cqbjax.log_analysis import requests, retries, summary

    reading = {key: keys[key] for key in ("columns", "models", "max_bad") if key in keys}
    file = arguments.file
    if str(file) == "example" and not file.exists():
        file = Path(requests.__file__).parent / "example.jsonl.gz"
    log = requests.read_log(file, **reading)
    max_gap = keys.get("max_gap", retries.MAX_GAP)
    unlinked, found = "", None
    try:
        found = retries.find_retries(log, keys.get("threshold"), max_gap)
    except retries.LogError as error:
        unlinked = str(error)
    console = Console(width=120)
    for line in summary.describe(file, log, found, max_gap):
        console.print(line, markup=False, highlight=False)
    if found is None:
        console.print(f"No retries: {unlinked}", markup=False, highlight=False)
    console.print(summary.format_models(log, found, max_gap))


main = functools.partial(run_plain, run_log, ARGUMENTS)
