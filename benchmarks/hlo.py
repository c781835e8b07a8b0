"""Kernels of a compiled GPU program's loops, and the bytes that they touch.

XLA prints its optimised program as text (HLO), in which every instruction of a loop's body that is
not bookkeeping is a kernel. A kernel's bytes are counted once for each array, however often its
threads read it, as if caches held repeated reads:

    read       an operand; of one that is only sliced or gathered from, the slices
    written    the result; of one that is updated in place, the update (and where it is added to
               the old values, those are read)
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

WIDTHS = {"pred": 1, "u8": 1, "s8": 1, "u16": 2, "s16": 2, "f16": 2, "bf16": 2}
WIDTHS |= {"u32": 4, "s32": 4, "f32": 4, "u64": 8, "s64": 8, "f64": 8}
# No kernels: names of existing arrays, loops (counted separately), ends of asynchronous starts.
FREE = (
    "parameter", "tuple", "get-tuple-element", "bitcast", "constant", "after-all", "partition-id",
    "replica-id", "while", "opt-barrier", "copy-done", "async-done", "add-dependency",
)  # fmt: skip
RENAMED = ("bitcast", "copy", "reshape", "transpose", "convert")
UPDATES = ("dynamic-update-slice", "scatter")
PICKS = ("slice", "dynamic-slice", "gather")


class Instruction(NamedTuple):
    """A line of a program.

    Attributes:
        name: of its result.
        shape: of its result, as printed; several in brackets for a tuple.
        operation: HLO's name of it.
        operands: their names.
        rest: attributes, as printed.
        root: whether it is the result of its computation.
    """

    name: str
    shape: str
    operation: str
    operands: tuple[str, ...]
    rest: str
    root: bool

    @property
    def bytes(self) -> int:
        """Bytes of the result, of all parts of a tuple."""
        return size(self.shape)

    def attribute(self, name: str) -> str:
        """Return the computation that an attribute names."""
        match = re.search(rf"{name}=%?([\w.\-]+)", self.rest)
        assert match, f"{self.operation} without {name}"
        return match[1]

    @property
    def called(self) -> list[str]:
        """The computations that a call or the branches of a conditional run."""
        if self.operation == "call":
            return [self.attribute("to_apply")]
        if self.operation != "conditional":
            return []
        if listed := re.search(r"branch_computations=\{([^}]*)\}", self.rest):
            return re.findall(r"%?([\w.\-]+)", listed[1])
        return [self.attribute("true_computation"), self.attribute("false_computation")]


class Kernel(NamedTuple):
    """One kernel of a loop's turn.

    Attributes:
        name: of its result.
        operation: `fusion`, `copy`, `custom-call`, ...
        shape: of the result, as printed.
        bytes: read and written.
        fresh: bytes not written in place.
        target: of a custom call, else empty.
    """

    name: str
    operation: str
    shape: str
    bytes: int
    fresh: int
    target: str

    @property
    def plain_shape(self) -> str:
        """The shape without its layout in memory."""
        return re.sub(r"\{[^}]*\}", "", self.shape)


class Loop(NamedTuple):
    """One loop of a program.

    Attributes:
        turns: how often it turns if the program states it, else None: the host then asks the
            device before each turn.
        kernels: of one turn, without inner loops.
        loops: the inner loops.
    """

    turns: int | None
    kernels: tuple[Kernel, ...]
    loops: tuple["Loop", ...]

    @property
    def work(self) -> tuple[int, int]:
        """Kernels and bytes of one turn, with those of inner loops of known turns."""
        kernels, moved = len(self.kernels), sum(kernel.bytes for kernel in self.kernels)
        for loop in self.loops:
            more, further = loop.work
            turns = loop.turns or 0
            kernels, moved = kernels + turns * more, moved + turns * further
        return kernels, moved

    @property
    def work_a_turn(self) -> tuple[int, int]:
        """Kernels and bytes of one turn of each inner loop of unknown turns."""
        works = [loop.work for loop in self.loops if loop.turns is None]
        return sum(work[0] for work in works), sum(work[1] for work in works)

    def all_kernels(self) -> Iterator[Kernel]:
        """Yield the kernels of a turn, with those of inner loops."""
        yield from self.kernels
        for loop in self.loops:
            yield from loop.all_kernels()


Program = dict[str, list[Instruction]]


def size(shape: str) -> int:
    """Return the bytes of a shape as HLO prints it, of all parts of a tuple."""
    total = 0
    for kind, dims in re.findall(r"\b(pred|[a-z]+\d+)\[([\d,]*)\]", shape):
        total += math.prod(map(int, filter(None, dims.split(",")))) * WIDTHS.get(kind, 4)
    return total


def loops(text: str) -> tuple[Loop, ...]:
    """Return the outermost loops of a printed program, with their inner loops."""
    program, entered = parse(text)
    return tuple(_loops(program, entered))


def parse(text: str) -> tuple[Program, str]:
    """Return computation -> instructions of a printed program, and its entry computation."""
    program: Program = {}
    entered, here = "", None
    for line in text.splitlines():
        if head := re.match(r"(ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{$", line):
            here = program.setdefault(head[2], [])
            entered = head[2] if head[1] else entered
        elif line.startswith("}"):
            here = None
        elif here is not None and (
            match := re.match(r"\s+(ROOT )?%?([\w.\-]+) = (.+?) ([a-z][\w\-]*)\((.*)$", line)
        ):
            inside, rest = _split_brackets(match[5])
            names = tuple(re.findall(r"%([\w.\-]+)", inside))
            rest = inside if match[4] == "parameter" else rest
            here.append(Instruction(match[2], match[3], match[4], names, rest, bool(match[1])))
    return program, entered


def _split_brackets(text: str) -> tuple[str, str]:
    """Split the text after an opening bracket at the bracket that closes it."""
    depth = 1
    for place, char in enumerate(text):
        depth += (char in "({") - (char in ")}")
        if depth == 0:
            return text[:place], text[place + 1 :]
    return text, ""


def _loops(program: Program, where: str) -> Iterator[Loop]:
    """Yield the loops of one computation and of the computations that it calls."""
    for one in program[where]:
        if one.operation == "while":
            body = one.attribute("body")
            turns = re.search(r'known_trip_count":\{"n":"(\d+)"', one.rest)
            inner = tuple(_loops(program, body))
            yield Loop(turns and int(turns[1]), tuple(_kernels(program, body)), inner)
        for called in one.called:
            yield from _loops(program, called)


def _kernels(program: Program, where: str) -> Iterator[Kernel]:
    """Yield the kernels of a computation; of a conditional those of all its branches."""
    instructions = program[where]
    shapes = {one.name: one.shape for one in instructions}
    for one in instructions:
        for called in one.called:
            yield from _kernels(program, called)
        if one.operation in (*FREE, "call", "conditional"):
            continue
        if one.operation == "fusion":
            moved, fresh = _fusion_bytes(program, program[one.attribute("calls")])
        elif one.operation == "dynamic-update-slice":
            moved, fresh = 2 * size(shapes.get(one.operands[1], "")), 0  # from memory to memory
        elif "bytes_a_program" in one.rest:
            moved, fresh = _declared_bytes(one)
        else:
            moved = one.bytes + sum(size(shapes.get(name, "")) for name in one.operands)
            fresh = one.bytes
        target = re.search(r'custom_call_target="([^"]*)"', one.rest)
        name = target[1] if target else ""
        yield Kernel(one.name, one.operation, one.shape, moved, fresh, name)


def _fusion_bytes(program: Program, parts: Sequence[Instruction]) -> tuple[int, int]:
    """Return the bytes that a fused kernel touches, and those not written in place."""
    by_name = {one.name: one for one in parts}
    uses: dict[str, list[Instruction]] = defaultdict(list)
    for one in parts:
        for name in one.operands:
            uses[name].append(one)

    def origin(name: str) -> Instruction:
        one = by_name[name]
        while one.operation in RENAMED:
            one = by_name[one.operands[0]]
        return one

    def read(one: Instruction) -> int:
        total = 0
        for use in uses[one.name]:
            first = use.operands[0] == one.name
            if use.operation in PICKS and first:
                total += use.bytes
            elif use.operation == "bitcast":
                total += read(use)
            elif use.operation not in UPDATES or not first:
                total += one.bytes
        return min(total, one.bytes)

    root = next(one for one in parts if one.root)
    results = root.operands if root.operation == "tuple" else (root.name,)
    in_place, fresh, updated = set(), 0, 0
    for name in results:
        one = origin(name)
        if one.operation not in UPDATES:
            fresh += by_name[name].bytes
            continue
        number = 1 if one.operation == "dynamic-update-slice" else len(one.operands) - 1
        # A scatter that combines old and new values reads what it overwrites.
        combines = one.operation == "scatter" and any(
            x.root and x.operation != "parameter" for x in program[one.attribute("to_apply")]
        )
        updated += (2 if combines else 1) * by_name[one.operands[number]].bytes
        in_place.add(origin(one.operands[0]).name)
    inputs = [one for one in parts if one.operation == "parameter" and one.name not in in_place]
    return sum(map(read, inputs)) + updated + fresh, fresh


def _declared_bytes(one: Instruction) -> tuple[int, int]:
    """Return the same of a hand-written kernel, which declares the bytes of each program."""
    # A quotation mark within a string is printed as \22.
    declared = re.search(r"bytes_a_program(?:\\22|\"): (?:\\22|\")(\d+?)(?:\\22|\")", one.rest)
    assert declared, f"{one.name} declares no bytes"
    moved = int(declared[1])
    for axis in "xyz":
        grid = re.search(rf"grid_{axis} = (\d+)", one.rest)
        moved *= int(grid[1]) if grid else 1
    parts = re.findall(r"[a-z]+\d+\[[\d,]*\]", one.shape)
    aliased = re.search(r"output_to_operand_aliasing=\{(.*?)\)\}", one.rest)
    in_place = re.findall(r"\{(\d*)\}: \(", aliased[0]) if aliased else []
    return moved, one.bytes - sum(size(parts[int(number or 0)]) for number in in_place)
