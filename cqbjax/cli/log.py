"""Read a log of requests to LLMs: what it shows, and a scenario fitted to it.

python scripts/log.py describe requests.jsonl
python scripts/log.py describe example    # a made-up log that ships with the package
python scripts/log.py describe requests.csv "columns={time: created_at, model: llm}" max_bad=0.2
python scripts/log.py fit requests.jsonl name=ours     # then: scripts/run.py scenario=ours
python scripts/log.py compare ours                     # policies in the fitted scenario

The file has JSON lines, a JSON array, CSV or Parquet, gzipped or not. Nothing is sent; no prompt
and no user is stored. docs/how_to/decide_from_a_log.md describes the keys.
"""

import argparse
import functools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml

from cqbjax.cli._command import Arguments, run_plain
from cqbjax.core.inputs import is_number, suggest_names
from cqbjax.experiments.validation import COUNT, TEXT, Rule, one_of, validate_name

MAPPING: Rule = (lambda x: isinstance(x, dict), "must be a mapping, such as {time: created_at}")
SHARE: Rule = (lambda x: is_number(x) and 0 < x <= 1, "must be a number in (0, 1]")
SECONDS: Rule = (lambda x: is_number(x) and x > 0, "must be seconds, above 0")
LABELS: Rule = (lambda x: isinstance(x, list), "must be a list of labels, such as [acqb,greedy]")

# The keys that each step reads, and what each must be.
READING = {"columns": MAPPING, "models": MAPPING, "max_bad": SHARE}
LINKING = {"threshold": SHARE, "max_gap": SECONDS}
FITTING = {
    "precision": SHARE, "contexts": one_of("none", "statistics", "words", "embeddings"),
    "outcome": one_of("attempt", "query", "prompt"), "round_seconds": SECONDS, "channels": COUNT,
    "arrivals": one_of("trace", "profile"),
}  # fmt: skip
COMPARING = {"seeds": COUNT, "horizon": COUNT, "policies": LABELS}
SEEDS = 200
VERBS = {
    "describe": READING | LINKING, "fit": READING | LINKING | FITTING | {"name": TEXT},
    "compare": COMPARING,
}  # fmt: skip

ARGUMENTS = Arguments(description="Read a log of requests to LLMs.")
ARGUMENTS.add_argument("verb", choices=VERBS, help="describe a log, fit a scenario, compare")
ARGUMENTS.add_argument("file", type=Path, help="the log, or `example`; for compare, the scenario")
ARGUMENTS.add_argument(
    "words", nargs="*", metavar="KEY=VALUE", help=", ".join(VERBS["fit"] | COMPARING)
)


def parse_keys(verb: str, words: Sequence[str]) -> dict[str, Any]:
    """Return key -> value of `key=value` words; values are YAML.

    Raises:
        ValueError: an unknown key, or a value of a wrong type.
    """
    values: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or key not in VERBS[verb]:
            raise ValueError(f"{word} is unknown here{suggest_names(key, list(VERBS[verb]))}")
        try:
            values[key] = yaml.safe_load(text)
        except yaml.YAMLError:
            values[key] = None
        if not VERBS[verb][key][0](values[key]):
            raise ValueError(f"{word} {VERBS[verb][key][1]}")
    return values


def run_log(arguments: argparse.Namespace) -> None:
    """Describe a log, fit a scenario to it, or compare policies in a scenario.

    Raises:
        ValueError: a wrong argument, or a log that cannot be read or fitted.
    """
    keys = parse_keys(arguments.verb, arguments.words)
    name = keys.get("name", "ours")
    validate_name(name)
    if arguments.verb == "compare":
        compare_policies(str(arguments.file), keys)
        return
    from cqbjax.log_analysis import requests, retries, summary
    from cqbjax.results import tables

    file = arguments.file
    if str(file) == "example" and not file.exists():
        file = Path(requests.__file__).parent / "example.jsonl.gz"
    log = requests.read_log(file, **{key: keys[key] for key in READING if key in keys})
    unlinked, found = [], None
    try:
        found = retries.find_retries(log, **{key: keys[key] for key in LINKING if key in keys})
    except retries.LogError as error:
        if arguments.verb == "fit":
            raise
        unlinked = [f"No retries: {error}"]
    if arguments.verb == "describe" or found is None:
        show(summary.describe(file, log, found))
        show(unlinked)
        tables.print_table(summary.tabulate_models(log, found), "Requests by LLM")
        return
    from cqbjax.log_analysis import fit, scenario

    chosen = {key: keys[key] for key in FITTING if key in keys}
    fitted = fit.fit_log(log, found, **chosen)
    show(fit.report(fitted))
    tables.print_table(fit.tabulate_departures(fitted), "Departure probability of an attempt")
    written = scenario.write_scenario(name, fitted.arrays, fitted.timing, fitted.about, Path.cwd())
    below = ", ".join(str(one.relative_to(Path.cwd())) for one in written)
    show([f"written: {below}", f"next: cqbjax log compare {name}"])


def show(lines: Iterable[Any]) -> None:
    """Print lines and tables."""
    from rich.console import Console

    console = Console(width=120)
    for line in lines:
        console.print(line, markup=False, highlight=False)


def compare_policies(name: str, keys: dict[str, Any]) -> None:
    """Compare policies in a scenario, and write the page, the table and the picture.

    Raises:
        ValueError: the current folder has no such scenario.
    """
    from cqbjax.cli._compose import compose_jobs, find_user_folder, initialize_hydra
    from cqbjax.cli._instantiate import make
    from cqbjax.core.files import write_atomic
    from cqbjax.experiments.study import build_source
    from cqbjax.experiments.study_types import prepare_points
    from cqbjax.figures import save_figure
    from cqbjax.log_analysis import compare, scenario
    from cqbjax.results import tables
    from cqbjax.results.policy_styles import find_style

    user = find_user_folder()
    if user is None or not (user / "scenario" / f"{name}.yaml").is_file():
        file = f"conf/scenario/{name}.yaml"
        raise ValueError(f"{file} does not exist: cqbjax log fit FILE name={name} writes it")
    with initialize_hydra():
        policies = ",".join(map(str, keys.get("policies", compare.LEARNING)))
        (job,) = compose_jobs([[f"scenario={name}", f"policy=[{policies}]"]])
    arrays, about = scenario.load_arrays(job.config.source.file)
    horizon = keys.get("horizon") or scenario.choose_horizon(about, job.config.arrival_rate)
    (point,) = prepare_points(job.config.with_values({"horizon": horizon}), make)
    rounds = next((one.rounds for one in point.service if hasattr(one, "rounds")), 1.0)
    compared = compare.compare(
        arrays, about, build_source(point), job.config.arrival_rate, rounds, point.policies,
        keys.get("seeds", SEEDS), horizon,
    )  # fmt: skip
    table = compare.tabulate(compared)
    lines = list(compare.describe_comparison(compared, table))
    shown = compare.select_columns(compared, table)
    show(lines)
    tables.print_table(shown, "Policies")
    stem = Path("results") / "logs" / name
    stem.parent.mkdir(parents=True, exist_ok=True)
    csv, page = tables.save_table(shown, stem, "Policies")
    tables.write_csv(csv, table)
    parts = [f"# Policies in the scenario {name}", *lines, page.read_text(), f"![]({name}.png)\n"]
    write_atomic(page, "\n\n".join(parts).encode())
    names = [find_style(label).name for label in table["policy"]]
    save_figure(compare.draw_comparison(table, about, names), stem)
    show([f"written: {stem}.md, .csv and .png"])


main = functools.partial(run_plain, run_log, ARGUMENTS)
