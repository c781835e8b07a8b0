"""Do the tests see a fault? `python tests/mutate.py` plants some hundreds, one at a time.

cosmic-ray (the extra `mutation`) knows which faults there are; a seeded sample of them is planted
in copies of the checkout, where the tests that execute the fault's line run until one fails: the
quick tier, then, for what survives it, the slow one. Every outcome is kept at once, so the same
command goes on where it was interrupted; `--again` tries survivors anew. Whoever has read a
survivor and found that it computes the same writes why under its `equivalent` in the file of
outcomes. At the end every test that saw a fault must pass without one. The page's tables are drawn
after each fault.
"""

import argparse
import concurrent.futures
import itertools
import json
import os
import pathlib
import tempfile

from mutation import faults
from mutation.trials import CHOSEN, TIERS, Trials, prepare

TESTS = pathlib.Path(__file__).resolve().parent
REPOSITORY = TESTS.parent
KEPT = REPOSITORY / "docs" / "notebook" / "mutation.json"
PAGE = KEPT.with_suffix(".md")


def compile_as_tests_do() -> None:
    """Say it before JAX is imported, which tests/conftest.py cannot do in a forked process."""
    from flags import flags

    known = {
        "PYTHONDONTWRITEBYTECODE": "1",  # a file may change twice within its time's precision
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "CQBJAX_DATA": str(REPOSITORY.parent / "shared" / "data"),
        # Programs with a fault are of no use to anybody else.
        "JAX_COMPILATION_CACHE_DIR": str(REPOSITORY / ".pytest_cache" / "d" / "xla-of-faults"),
    }
    os.environ.update(known | dict(os.environ), XLA_FLAGS=flags())


def main() -> None:
    """Draw the sample, try what was not tried, and draw the page's table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--number", type=int, default=200, help="faults in the sample")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--files", nargs="*", help="only these, instead of the rooms'")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--timeout", type=float, default=1800, help="seconds: then it is killed")
    parser.add_argument("--tiers", nargs="*", default=list(TIERS), choices=TIERS)
    parser.add_argument("--again", action="store_true", help="try survivors once more")
    given = parser.parse_args()
    compile_as_tests_do()
    files = [pathlib.Path(file) for file in given.files or faults.modules(CHOSEN)]
    sample = faults.draw([at for file in files for at in faults.of(file)], given.number, given.seed)
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    left = [fault for fault in sample if wanted(kept.get(faults.name(fault)), given)]
    print(f"{len(sample)} faults, {len(left)} to try", flush=True)
    if left:
        with tempfile.TemporaryDirectory() as folder:
            workers = min(given.workers, len(left))
            trials = prepare(pathlib.Path(folder), workers, given.timeout, given.tiers, left)
            try_all(left, trials, given.tiers, kept, sample)
            trials.check_sound([kept[faults.name(fault)] for fault in left])
    draw_page(sample, kept)


def try_all(left: list[dict], trials: Trials, tiers: list[str], kept: dict, sample: list) -> None:
    """Try faults, each in the copy that is free, and keep every outcome at once."""
    with concurrent.futures.ThreadPoolExecutor(trials.copies.qsize()) as pool:
        tried = {pool.submit(trials.attempt, one, tiers): one for one in left}
        try:
            for number, done in enumerate(concurrent.futures.as_completed(tried), 1):
                fault, outcome = tried[done], done.result()
                name = faults.name(fault)
                kept[name] = kept.get(name, {}) | fault | outcome
                save(kept)
                draw_page(sample, kept)
                print(f"{number} of {len(left)}: {name}  {outcome}", flush=True)
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)
            raise SystemExit("stopped: the same command goes on") from None


def wanted(outcome: dict | None, given: argparse.Namespace) -> bool:
    """Say whether a fault is still to be tried."""
    if outcome is None:
        return True
    if "equivalent" in outcome:
        return False
    untried = any(outcome.get(tier) is None for tier in given.tiers)
    survives = outcome.get(given.tiers[-1]) == "survived"
    return survives if given.again else untried and not killed(outcome)


def killed(outcome: dict, tiers: tuple[str, ...] = tuple(TIERS)) -> bool:
    """Say whether one of the tiers killed a fault."""
    return any(outcome.get(tier, "survived") != "survived" for tier in tiers)


def save(kept: dict) -> None:
    """Keep all outcomes, or those of before if this process ends meanwhile."""
    partial = KEPT.with_suffix(".partial")
    partial.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
    partial.replace(KEPT)


def draw_page(sample: list[dict], kept: dict) -> None:
    """Draw the tables of what was tried of the sample, between the page's marks."""
    outcomes = [kept[name] for name in map(faults.name, sample) if name in kept]
    rows = [
        "| package | faults | equivalent | killed by the quick tier | by both |",
        "|---|--:|--:|--:|--:|",
    ]
    by_room = itertools.groupby(sorted(outcomes, key=room_of), room_of)
    for room, some in [*((room, list(some)) for room, some in by_room), ("all", outcomes)]:
        real = [one for one in some if "equivalent" not in one]
        quick, both = (sum(killed(one, of) for one in real) for of in (("quick",), tuple(TIERS)))
        shares = (f"{n} ({n / max(len(real), 1):.0%})" for n in (quick, both))
        rows.append(f"| {room} | {len(some)} | {len(some) - len(real)} | {' | '.join(shares)} |")
    survivors = [one for one in outcomes if not killed(one)]
    if survivors:
        rows += ["", "| survivor | line | fault | verdict |", "|---|--:|---|---|"]
    for one in survivors:
        fault = f"`{one['before']}` → `{one['after']}`".replace("|", r"\|")
        tried = [tier for tier in TIERS if tier in one]
        verdict = one.get("equivalent", f"not seen by the {' and the '.join(tried)} tier")
        rows.append(f"| {one['file']} | {one['line']} | {fault} | {verdict} |")
    head, rest = PAGE.read_text().split("<!-- tables -->\n")
    after = rest.partition("<!-- end -->")[2]
    PAGE.write_text("\n".join([f"{head}<!-- tables -->", "", *rows, "", f"<!-- end -->{after}"]))


def room_of(outcome: dict) -> str:
    """Return the room that a fault was planted in."""
    return pathlib.Path(outcome["file"]).parts[1]


if __name__ == "__main__":
    main()
