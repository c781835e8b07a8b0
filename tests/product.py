"""Does every policy start with every source? `python tests/product.py` tries the whole product.

Each policy, source, K and number of seeds is compiled in a child process as a study compiles it,
and plays a stretch of rounds; nothing is trained. A child that dies is counted under the name of
what it tried, and another one tries what is left. Programs of one shape are compiled once a child.
Outcomes are stored as they come: the same command goes on where it was interrupted, and several
commands share the work by `--sources` and `--sizes`.
"""

import argparse
import collections
import concurrent.futures
import itertools
import json
import os
import pathlib
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import NamedTuple

TESTS = pathlib.Path(__file__).resolve().parent
REPOSITORY = TESTS.parent
CONF = REPOSITORY / "conf"
SOURCES = sorted(path.stem for path in (CONF / "source").glob("*.yaml"))
POLICIES = sorted(path.stem for path in (CONF / "policy").glob("*.yaml"))
ROUTERS = sorted(path.stem for path in (CONF / "router").glob("*.yaml"))
SIZES, SEEDS = (1, 2), (1, 2, 3)
# Sources that bring no contexts of prompts, from which routers learn.
DRAWN = ("coin", "partly_linear", "success_probabilities", "synthetic")
FINE = "compiled"


class Case(NamedTuple):
    """What is compiled.

    Attributes:
        source: its label.
        size: K.
        seeds: how many.
        policy: its label.
    """

    source: str
    size: int
    seeds: int
    policy: str

    @property
    def words(self) -> list[str]:
        """The words of the study."""
        return [
            f"source={self.source}", f"K={self.size}", f"num_seeds={self.seeds}",
            f"policy=[{self.policy}]", "arrival_rate=0.6", "horizon=200", "table_rounds=[200]",
        ]  # fmt: skip


def list_routers() -> list[str]:
    """Return the labels of routers, with each retry rule and schedule."""
    from cqbjax.cli._compose import list_bases, list_labels
    from cqbjax.core.labels import split_label

    bases = list_bases()
    routers = {name for name, path in bases.items() if path.parent.name == "router"}
    return [label for label in list_labels() if split_label(label, bases)[0] in routers]


def whole_product(sources: Sequence[str], sizes: Sequence[int]) -> list[Case]:
    """Return the product, what shares programs side by side."""
    policies = [*POLICIES, *list_routers()]
    return [
        Case(source, size, seeds, policy)
        for source, size, seeds, policy in itertools.product(sources, sizes, SEEDS, policies)
        if source not in DRAWN or policy in POLICIES
    ]


def part(sources: Sequence[str]) -> list[Case]:
    """Return cases in which every policy, router, source, K and number of seeds occurs."""
    prompts = [source for source in sources if source not in DRAWN]
    rest = itertools.cycle(itertools.product(SEEDS, SIZES))
    of_all = zip(POLICIES, itertools.cycle(sources), rest, strict=False)
    of_prompts = zip(ROUTERS, itertools.cycle(prompts), rest, strict=False)
    return sorted(
        Case(source, size, seeds, policy)
        for policy, source, (seeds, size) in itertools.chain(of_all, of_prompts)
    )


def try_cases(
    cases: Sequence[Case], folder: pathlib.Path, words: Sequence[str], timeout: float = 900
) -> Iterator[tuple[Case, str]]:
    """Try cases in child processes, one after another.

    Args:
        cases: to try.
        folder: where compiled programs are stored.
        words: of every study, beside those of a case.
        timeout: seconds after which a case is killed.

    Yields:
        A case, and `FINE` or what became of it.
    """
    left = list(cases)
    while left:
        environment = {key: value for key, value in os.environ.items() if key != "XLA_FLAGS"}
        environment |= {"JAX_PLATFORMS": "cpu", "JAX_COMPILATION_CACHE_DIR": str(folder / "xla")}
        child = subprocess.Popen(
            [sys.executable, __file__, "--child", *words], env=environment, cwd=REPOSITORY,
            text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        assert child.stdin and child.stdout
        for case in left:
            print(json.dumps(case), file=child.stdin)
        child.stdin.close()
        number = 0
        while number < len(left):
            clock = threading.Timer(timeout, child.kill)
            clock.start()
            output_line = child.stdout.readline()
            clock.cancel()
            if not output_line:
                break
            yield left[number], json.loads(output_line)
            number += 1
        status = child.wait()
        if number < len(left):
            yield left[number], f"died, status {status}"
            number += 1
        left = left[number:]


def be_child(words: Sequence[str]) -> None:
    """Try the cases of standard input, and write a line for each."""
    from names import ambiguous_names

    from cqbjax.cli import _compose
    from cqbjax.cli._instantiate import make
    from cqbjax.core import backend
    from cqbjax.engine.progress import Reporter
    from cqbjax.experiments import study_types

    backend.configure()
    found, compile_lowered = list[str](), backend.compile_lowered

    def compile_and_check(*arguments, **options):
        made = compile_lowered(*arguments, **options)
        found.extend(map(str, ambiguous_names(made.as_text())))
        return made

    backend.compile_lowered = compile_and_check
    fits_cache: dict = {}
    with _compose.initialize_hydra():
        for line in sys.stdin:
            case = Case(*json.loads(line))
            found.clear()
            try:
                (job,) = _compose.compose_jobs([[*case.words, *words]])
                ready = study_types.prepare_points(job.config, make, cache=fits_cache)
                ready[0].study_type.estimate(ready, Reporter())
                outcome = f"ambiguous names: {', '.join(found)}" if found else FINE
            except (ValueError, OSError) as error:
                outcome = f"refused: {str(error).splitlines()[0]}"
            except Exception as error:  # anything else is a fault, and counted by its name
                outcome = f"failed: {type(error).__name__} {str(error).splitlines()[0]}"
            print(json.dumps(outcome), flush=True)


def main() -> None:
    """Try what was not tried, and count the outcomes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=pathlib.Path, default=REPOSITORY / ".pytest_cache" / "all")
    parser.add_argument("--sources", nargs="*", default=SOURCES, choices=SOURCES)
    parser.add_argument("--sizes", nargs="*", type=int, default=SIZES, help="K")
    parser.add_argument("--part", action="store_true", help="every policy and source once")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments, words = parser.parse_known_args()
    if arguments.child:
        be_child(words)
        return
    arguments.folder.mkdir(parents=True, exist_ok=True)
    file, known = arguments.folder / "outcomes.jsonl", {}
    for line in file.read_text().splitlines() if file.exists() else ():
        *case, outcome = json.loads(line)
        known[Case(*case)] = outcome
    cases = (
        part(arguments.sources)
        if arguments.part
        else whole_product(arguments.sources, arguments.sizes)
    )
    left = [case for case in cases if case not in known]
    print(f"{len(cases)} cases, {len(left)} to try", flush=True)
    # One child tries a part, and imports once; of the product, children share the work.
    shared_fields = 0 if arguments.part else 3
    shares = [list(some) for _, some in itertools.groupby(left, lambda case: case[:shared_fields])]

    def share(some: list[Case]) -> None:
        for case, outcome in try_cases(some, arguments.folder, words):
            known[case] = outcome
            with file.open("a") as out:
                out.write(json.dumps([*case, outcome]) + "\n")
            if outcome != FINE:
                print(*case, outcome, flush=True)

    with concurrent.futures.ThreadPoolExecutor(arguments.workers) as pool:
        list(pool.map(share, shares))
    counts = collections.Counter(known[case].partition(":")[0] for case in cases)
    print(", ".join(f"{count} {outcome}" for outcome, count in counts.most_common()))


if __name__ == "__main__":
    main()
