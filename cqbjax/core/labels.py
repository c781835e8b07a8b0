"""Names shared by several packages: labels of policies, servers, and the paper's data."""

import json
import re
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

# The label of the oracle: the policy that regret is measured against.
OPTIMAL = "optimal"
# Parts of a policy's label, BASE[_RETRY][_SCHEDULE]: retry rules, and schedules -> the queue rule.
RETRIES = ("fallback", "posterior", "recall", "cache")
SCHEDULES = {
    "fifo": "oldest", "lifo": "newest", "least_served": "least_served", "random": "random",
    "priority": "joint",
}  # fmt: skip
_LABEL = re.compile(rf"(.+?)(?:_({'|'.join(RETRIES)}))?(?:_({'|'.join(SCHEDULES)}))?")
# The attribute of an array of one server's values: the number of that server.
SERVER = "server"
# The dimension of arrays with one number per LLM; its coordinate holds the LLMs' names.
LLM = "llm"
# The attribute of a grid point with the names of its servers, in order: see `join_names`.
SERVERS = "servers"
# `source` in lower case -> the paper's name of the dataset.
PAPER_DATASETS = {
    "synthetic": "Synthetic",
    "sprout": "Sprout",
    "sprout-o3mini": "Sprout",
    "embedllm": "EmbedLLM",
    "routerbench": "RouterBench",
    "wildchat-1m": "WildChat-1M",
}


# Values of `provenance`: the paper's data; a proxy dataset; generated data; a user's data. Code
# that reads or generates data sets it, and all other code reads it.
PAPER, PROXY, GENERATED, USER_DATA = "paper", "stand-in", "generated", "own"


def split_label(label: str, bases: Collection[str] = ()) -> tuple[str, dict[str, str]]:
    """Return the base of a policy's label, and the rules that the label sets.

    Args:
        label: `lints_fallback_fifo` sets `{"retry": "fallback", "schedule": "oldest"}` in `lints`.
        bases: names that are not split, such as `acqb_explore_random`.
    """
    parts = None if label in bases else _LABEL.fullmatch(label)
    if parts is None:
        return label, {}
    base, retry, schedule = parts.groups()
    rules = {"retry": retry, "schedule": SCHEDULES.get(schedule)}
    return base, {key: value for key, value in rules.items() if value}


def join_names(names: Sequence[str]) -> str:
    """Return names, which may hold any characters, as one string that `split_names` splits."""
    return json.dumps(list(names), ensure_ascii=False)


def split_names(text: str) -> list[str]:
    """Return the names in a string of `join_names`, or of an older result (joined by commas)."""
    if text.startswith('["'):
        return json.loads(text)
    return text.split(", ") if text else []


def command(name: str) -> str:
    """Return how a user calls a command: `cqbjax NAME`, or its script in a checkout."""
    script = Path("scripts") / f"{name}.py"
    in_checkout = (Path(__file__).parents[2] / script).is_file()
    installed = sys.argv[0].startswith("cqbjax ") or not in_checkout
    return f"cqbjax {name}" if installed else f"python {script}"
