"""Names in a compiled program that XLA's fusion emitters take for one."""

import collections
import re

COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) .*\{$")
INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = ")


def ambiguous_names(text: str) -> list[tuple[str, ...]]:
    """Return the names of a computation that differ in punctuation alone, from a program's text.

    The emitters write an instruction as a function, and every character of its name that a name of
    a function cannot have as an underscore.
    """
    names, computation = collections.defaultdict(set), ""
    for line in text.splitlines():
        if begun := COMPUTATION.match(line):
            computation = begun[1]
        elif found := INSTRUCTION.match(line):
            names[computation, re.sub(r"\W", "_", found[1])].add(found[1])
    return [tuple(sorted(some)) for some in names.values() if len(some) > 1]
