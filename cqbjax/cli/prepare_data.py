"""Build a dataset's table and embeddings once: python scripts/prepare_data.py dataset=NAME."""

import dataclasses
import functools
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import omegaconf
from rich.console import Console
from rich.table import Table

from cqbjax import datasets
from cqbjax.cli._command import run_configured
from cqbjax.datasets.cache import CACHE
from cqbjax.datasets.embeddings import DEFAULT_MODEL
from cqbjax.datasets.prepare import prepare
from cqbjax.experiments.configs import CONF, Config
from cqbjax.experiments.grid import Job
from cqbjax.experiments.validation import COUNT, FLAG, NUMBER, WORD, Rule, apply_rules, or_null
from cqbjax.logs import linking
from cqbjax.logs import prepare as logs
from cqbjax.offline.routers.base import LEAST_PROMPTS
from cqbjax.offline.value import CARD_SEEDS, context_card
from cqbjax.results.tables import print_table

# The value of a key that leaves the choice to the dataset's entry in the catalogue.
CATALOGUED = "catalogue"


def prepare_all(jobs: Sequence[Job]) -> None:
    """Prepare the dataset of each job, and print a summary.

    Raises:
        ValueError: naming a wrong key.
    """
    for config in (job.config for job in jobs):
        if config.dataset == omegaconf.MISSING:
            raise ValueError("dataset=NAME is missing, it must be given.")
        apply_rules({**config, **{f"wildchat.{k}": v for k, v in config.wildchat.items()}}, RULES)
        if config.dataset == logs.NAME:
            _prepare_log(config)
        else:
            _prepare_table(config)


def _prepare_table(config: Config) -> None:
    """Prepare a routing table and its embeddings, and print a summary."""
    console = Console(markup=False, emoji=False, highlight=False)
    entry = _select_dataset(config)
    done = prepare(
        entry, config.data_dir, config.source, config.revision, config.model or DEFAULT_MODEL,
        config.batch_size, config.progress, prices=config.prices, embeddings=config.embeddings,
    )  # fmt: skip
    source = datasets.dataset_source(entry.name, config.data_dir, **_read_recipe(entry))
    table, satisfied, embeddings = source.table, source.probabilities, source.embeddings
    served = source.served(1)
    best = table.servers[served.best_assortment[0]]
    state = "built" if done.built else "already built, nothing to do"
    console.print(f"{table.name}: {state} ({done.key}, revision {done.revision})")
    console.print(
        f"{table.num_prompts:,} prompts x {table.num_servers} servers, "
        f"{len(np.unique(embeddings, axis=0)):,} distinct embeddings of {embeddings.shape[1]} "
        "dimensions"
    )
    for note in table.notes:
        console.print(f"  {note}")
    if table.proxy_note:
        console.print(f"  note: {table.proxy_note}")
    shares = []
    for answer in (0, 1):
        graded = satisfied[table.performance == answer]
        value = f"{graded.mean():.3f}" if graded.size else "unknown, no answer has it"
        shares.append(f"P(satisfied | grade {answer}) = {value}")
    console.print("; ".join(shares))
    shown = Table("LLM", box=None)
    for header in ("mean grade", "USD a query", "P(satisfied)"):
        shown.add_column(header, justify="right")
    means = (cells.mean(axis=0) for cells in (table.performance, table.cost, satisfied))
    for name, grade, price, share in zip(table.servers, *means, strict=True):
        shown.add_row(name, f"{grade:.3f}", f"{price:.3g}", f"{share:.3f}")
    console.print(shown)
    console.print(
        f"with K=1 and retrials random routing serves {served.random:.3f} queries a round, the "
        f"best fixed server {served.best_fixed:.3f} ({best}), the best of each prompt "
        f"{served.oracle:.3f}"
    )
    if all(len(source.split(seed).offline) >= LEAST_PROMPTS for seed in CARD_SEEDS):
        card = context_card(source, pathlib.Path(config.data_dir) / CACHE / "fits")
        print_table(card, "What contexts are worth: queries satisfied")
    else:
        console.print("too few prompts to say what contexts are worth")


def _prepare_log(config: Config) -> None:
    """Prepare a log of conversations, link its retrials, and print a summary."""
    console, wanted = Console(width=120), config.wildchat
    if config.prices is not None:
        raise ValueError(f"prices={config.prices} is for a routing table: leave it out")
    rule = linking.LinkingRule(wanted.threshold, wanted.min_gap, wanted.among)
    rule.check()
    encoder = config.model or logs.ENCODER
    own = None if config.embeddings is None else pathlib.Path(config.embeddings)
    if encoder == logs.NONE and own is None and rule.threshold < 1:
        raise ValueError(f"model={logs.NONE} embeds nothing, which needs wildchat.threshold=1.")
    data_dir = pathlib.Path(config.data_dir)
    source = None if config.source is None else pathlib.Path(config.source)
    done = logs.prepare(
        data_dir, source, wanted.model, encoder, wanted.tokens,
        config.revision, config.batch_size, config.progress, embeddings=own,
    )  # fmt: skip
    log = logs.load_log(data_dir)
    state = "built" if done.built else "already built, nothing to do"
    console.print(f"{log.name}: {state} ({done.key}, revision {done.revision})", markup=False)
    for line in logs.describe(log, logs.link(log, rule), rule):
        console.print(f"  {line}", markup=False)


RULES: dict[str, Rule] = {
    **dict.fromkeys(("dataset", "wildchat.model", "wildchat.tokens", "wildchat.among"), WORD),
    **dict.fromkeys(("source", "embeddings", "prices", "revision", "model"), or_null(*WORD)),
    "batch_size": COUNT, "progress": FLAG,
    "wildchat.threshold": NUMBER, "wildchat.min_gap": NUMBER,
}  # fmt: skip


def _select_dataset(config: Config) -> datasets.Dataset:
    """Return the dataset of the configuration, with its rules for dropping servers and prompts."""
    if config.dataset == "compact":
        entry = datasets.user_table(config.name)
    else:
        entry = datasets.find_dataset(config.dataset)
    share, prompts = config.drop_servers_below, config.drop_incomplete_prompts
    if share not in (CATALOGUED, None) and (type(share) not in (int, float) or not 0 < share <= 1):
        raise ValueError(
            f"drop_servers_below={share} must be a share in (0, 1], null or {CATALOGUED}."
        )
    if prompts != CATALOGUED and not isinstance(prompts, bool):
        raise ValueError(f"drop_incomplete_prompts={prompts} must be true, false or {CATALOGUED}.")
    rules = {"drop_servers_below": share, "drop_incomplete_prompts": prompts}
    chosen: dict[str, Any] = {key: value for key, value in rules.items() if value != CATALOGUED}
    return dataclasses.replace(entry, **chosen)


def _read_recipe(entry: datasets.Dataset) -> dict[str, Any]:
    """Return how the dataset's source file departs from the paper's rule for departures."""
    name = entry.name if entry.name in datasets.CATALOGUE else "compact"
    settings: Any = omegaconf.OmegaConf.load(CONF / "source" / f"{name}.yaml")
    keys = ("rho", "cost_rule", "low", "high", "min_max")
    return {key: settings[key] for key in keys if key in settings}


# This command has its own configuration, in which `source` does not choose a file.
main = functools.partial(run_configured, prepare_all, folder=CONF / "prepare")
