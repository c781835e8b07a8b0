"""Do the tests see a fault? `python tests/mutate.py` plants some hundreds, one at a time.

cosmic-ray (the extra `mutation`) knows which faults there are; a seeded sample of them is planted
in copies of the checkout, where the tests that execute the fault's line run until one fails: the
quick tier, then, for what survives it, the slow one. Every outcome is stored at once, so the same
command resumes; `--again` tries survivors once more. Whoever has read a
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
from mutation.trials import CHOSEN, TIERS, TrialFolders, prepare

TESTS = pathlib.Path(__file__).resolve().parent
REPOSITORY = TESTS.parent
STORED = REPOSITORY / "docs" / "notebook" / "mutation.json"
PAGE = STORED.with_suffix(".md")


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
    parser.add_argument("--files", nargs="*", help="only these, instead of the packages'")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--timeout", type=float, default=1800, help="seconds: then it is killed")
    parser.add_argument("--tiers", nargs="*", default=list(TIERS), choices=TIERS)
    parser.add_argument("--again", action="store_true", help="try survivors once more")
    arguments = parser.parse_args()
    compile_as_tests_do()
    files = [pathlib.Path(file) for file in arguments.files or faults.modules(CHOSEN)]
    sample = faults.draw(
        [at for file in files for at in faults.of(file)], arguments.number, arguments.seed
    )
    stored = json.loads(STORED.read_text()) if STORED.exists() else {}
    left = [fault for fault in sample if wanted(stored.get(faults.name(fault)), arguments)]
    print(f"{len(sample)} faults, {len(left)} to try", flush=True)
    if left:
        with tempfile.TemporaryDirectory() as folder:
            workers = min(arguments.workers, len(left))
            trials = prepare(
                pathlib.Path(folder), workers, arguments.timeout, arguments.tiers, left
            )
            try_all(left, trials, arguments.tiers, stored, sample)
            trials.check_sound([stored[faults.name(fault)] for fault in left])
    draw_page(sample, stored)


def try_all(
    left: list[dict], trials: TrialFolders, tiers: list[str], stored: dict, sample: list
) -> None:
    """Try faults, each in the copy that is free, and keep every outcome at once."""
    with concurrent.futures.ThreadPoolExecutor(trials.copies.qsize()) as pool:
        tried = {pool.submit(trials.attempt, one, tiers): one for one in left}
        try:
            for number, done in enumerate(concurrent.futures.as_completed(tried), 1):
                fault, outcome = tried[done], done.result()
                name = faults.name(fault)
                stored[name] = stored.get(name, {}) | fault | outcome
                save(stored)
                draw_page(sample, stored)
                print(f"{number} of {len(left)}: {name}  {outcome}", flush=True)
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)
            raise SystemExit("stopped: the same command goes on") from None


def wanted(outcome: dict | None, arguments: argparse.Namespace) -> bool:
    """Say whether a fault is still to be tried."""
    if outcome is None:
        return True
    if "equivalent" in outcome:
        return False
    untried = any(outcome.get(tier) is None for tier in arguments.tiers)
    survives = outcome.get(arguments.tiers[-1]) == "survived"
    return survives if arguments.again else untried and not killed(outcome)


def killed(outcome: dict, tiers: tuple[str, ...] = tuple(TIERS)) -> bool:
    """Say whether one of the tiers killed a fault."""
    return any(outcome.get(tier, "survived") != "survived" for tier in tiers)


def save(stored: dict) -> None:
    """Keep all outcomes, or those of before if this process ends meanwhile."""
    partial = STORED.with_suffix(".partial")
    partial.write_text(json.dumps(stored, indent=1, sort_keys=True) + "\n")
    partial.replace(STORED)


def draw_page(sample: list[dict], stored: dict) -> None:
    """Draw the tables of what was tried of the sample, between the page's marks."""
    outcomes = [stored[name] for name in map(faults.name, sample) if name in stored]
    rows = [
        "| package | faults | equivalent | killed by the quick tier | by both |",
        "|---|--:|--:|--:|--:|",
    ]
    by_package = itertools.groupby(sorted(outcomes, key=package_of), package_of)
    for package, some in [
        *((package, list(some)) for package, some in by_package),
        ("all", outcomes),
    ]:
        real = [one for one in some if "equivalent" not in one]
        quick, both = (sum(killed(one, of) for one in real) for of in (("quick",), tuple(TIERS)))
        shares = (f"{n} ({n / max(len(real), 1):.0%})" for n in (quick, both))
        rows.append(f"| {package} | {len(some)} | {len(some) - len(real)} | {' | '.join(shares)} |")
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


def package_of(outcome: dict) -> str:
    """Return the package that a fault was planted in."""
    return pathlib.Path(outcome["file"]).parts[1]


if __name__ == "__main__":
    main()
