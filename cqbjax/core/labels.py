"""How several rooms name the same things: the optimal policy, servers, and the paper's data."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

# The label of the yardstick: the policy that regret is measured against.
OPTIMAL = "optimal"
# The attribute of an array that is one server's: its number.
SERVER = "server"
# The dimension of arrays that hold a number for each LLM; its coordinate is their names.
LLM = "llm"
# The attribute of a point that names its servers, in their order: see `join_names`.
SERVERS = "servers"
# `source` in small letters -> the paper's name of the dataset.
PAPER_DATASETS = {
    "synthetic": "Synthetic",
    "sprout": "Sprout",
    "sprout-o3mini": "Sprout",
    "embedllm": "EmbedLLM",
    "routerbench": "RouterBench",
    "wildchat-1m": "WildChat-1M",
}


# Whose data are (`provenance`): said once, where they are read or made, and read everywhere else.
# The paper's own; real ones in place of them; made-up ones in place of them; somebody's own.
PAPER, PROXY, GENERATED, USER_DATA = "paper", "stand-in", "generated", "own"


def join_names(names: Sequence[str]) -> str:
    """Return names, which may hold any letters, as one text that `split_names` splits."""
    return json.dumps(list(names), ensure_ascii=False)


def split_names(text: str) -> list[str]:
    """Return the names in a text of `join_names`, or of an older result (joined by commas)."""
    if text.startswith('["'):
        names: list[str] = json.loads(text)
        return names
    return text.split(", ") if text else []


def command(name: str) -> str:
    """Return how a user starts a command: `cqbjax NAME`, or its script in a checkout."""
    script = Path("scripts") / f"{name}.py"
    in_checkout = (Path(__file__).parents[2] / script).is_file()
    installed = sys.argv[0].startswith("cqbjax ") or not in_checkout
    return f"cqbjax {name}" if installed else f"python {script}"
