"""Build a dataset's table and embeddings once: python scripts/prepare_data.py dataset=NAME."""

import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import omegaconf
from rich.console import Console

from cqbjax import datasets
from cqbjax.cli._start import start
from cqbjax.core.files import remove_on_error
from cqbjax.core.inputs import is_integer, is_number
from cqbjax.datasets.embeddings import DEFAULT_MODEL
from cqbjax.datasets.prepare import prepare
from cqbjax.experiments.configs import CONF, Config, select
from cqbjax.experiments.jobs import Job
from cqbjax.logs import generate, linking
from cqbjax.logs import prepare as logs

# What the catalogue drops from a dataset; nothing from a table of one's own.
CATALOGUED = "catalogue"
SOURCES = CONF / "source"


def main() -> None:
    """Prepare the dataset that the command line names."""
    # In a folder of its own: its key `source` is no choice of a file.
    start(prepare_each, folder=CONF / "prepare")


def prepare_each(jobs: Sequence[Job]) -> None:
    """Prepare every dataset that is named."""
    for job in jobs:
        build(job.config)


def build(config: Config) -> None:
    """Prepare one dataset and say what came of it."""
    if config.dataset == omegaconf.MISSING:
        raise ValueError("dataset=NAME is missing, it must be given.")
    _check(config)
    if config.dataset == logs.NAME:
        chains_of_a_log(config)
        return
    if config.made_up is not None:
        raise ValueError(
            f"made_up={config.made_up} generates a log of conversations: dataset=wildchat alone "
            "takes it"
        )
    console, entry = Console(markup=False), _entry(config)
    done = prepare(
        entry, config.data_dir, config.source, config.revision, config.model or DEFAULT_MODEL,
        config.batch_size, config.progress, prices=config.prices, embeddings=config.embeddings,
        truncation_side=config.truncation_side,
    )  # fmt: skip
    table, embeddings = datasets.load_dataset(entry.name, config.data_dir)
    served = datasets.served_rates(_probabilities(entry, table))
    best = table.servers[served.best_assortment[0]]
    state = "built" if done.built else "already built, nothing to do"
    console.print(f"{table.name}: {state} ({done.key}, revision {done.revision})")
    console.print(
        f"{table.num_prompts:,} prompts x {table.num_servers} servers, "
        f"embeddings of {embeddings.shape[1]} dimensions"
    )
    for note in table.notes:
        console.print(f"  {note}")
    if table.proxy_note:
        console.print(f"  note: {table.proxy_note}")
    console.print(
        f"with K=1 and retrials random routing serves {served.random:.3f} queries a round, the "
        f"best fixed server {served.best_fixed:.3f} ({best}), the best of each prompt "
        f"{served.oracle:.3f}"
    )


def chains_of_a_log(config: Config) -> None:
    """Prepare a log of conversations, link its retrials and say what came of it."""
    console, wanted = Console(width=120), config.wildchat
    for key in ("prices", "truncation_side"):
        if config[key] is not None:
            raise ValueError(f"{key}={config[key]} is of a routing table, not of dataset=wildchat.")
    rule = linking.LinkingRule(wanted.threshold, wanted.min_gap, wanted.among)
    rule.check()
    encoder = config.model or logs.ENCODER
    own = None if config.embeddings is None else pathlib.Path(config.embeddings)
    if encoder == logs.NONE and own is None and rule.threshold < 1:
        raise ValueError(f"model={logs.NONE} embeds nothing, which needs wildchat.threshold=1.")
    data_dir = pathlib.Path(config.data_dir)
    source = None if config.source is None else pathlib.Path(config.source)
    made = []
    if config.made_up is not None:
        source = data_dir / "made_up" / f"wildchat-{config.made_up}"
        made = [source]
        settings = generate.GeneratorSettings(
            config.made_up, longer=wanted.made_up_longer, follow_ups=wanted.made_up_follow_ups,
            close=wanted.made_up_close, seed=wanted.made_up_seed,
        )  # fmt: skip
    with remove_on_error(*made):
        if source and made:
            generate.generate(source, data_dir, settings)
        done = logs.prepare(
            data_dir, source, wanted.model, encoder, wanted.tokens,
            config.revision, config.batch_size, config.progress, embeddings=own,
        )  # fmt: skip
    log = logs.load_log(data_dir)
    state = "built" if done.built else "already built, nothing to do"
    console.print(f"{log.name}: {state} ({done.key}, revision {done.revision})", markup=False)
    for line in logs.describe(log, logs.link(log, rule), rule):
        console.print(f"  {line}", markup=False)


# What the keys of the command hold; those in `OPEN` may be null.
HOLDS: dict[str, tuple[Callable[[Any], bool], tuple[str, ...]]] = {
    "a word": (
        lambda value: isinstance(value, str) and bool(value),
        ("dataset", "source", "embeddings", "prices", "revision", "model", "truncation_side",
         "wildchat.model", "wildchat.tokens", "wildchat.among"),
    ),
    "a whole number, at least 1": (
        lambda value: is_integer(value) and value >= 1, ("batch_size", "made_up")
    ),
    "a whole number": (is_integer, ("wildchat.made_up_seed",)),
    "a number": (
        is_number,
        ("wildchat.threshold", "wildchat.min_gap", "wildchat.made_up_longer",
         "wildchat.made_up_follow_ups"),
    ),
    "true or false": (
        lambda value: isinstance(value, bool), ("progress", "wildchat.made_up_close")
    ),
}  # fmt: skip
OPEN = ("source", "embeddings", "prices", "revision", "model", "truncation_side", "made_up")


def _check(config: Config) -> None:
    """Refuse values that cannot be.

    Raises:
        ValueError: naming the key and what is allowed.
    """
    for what, (fine, keys) in HOLDS.items():
        for key in keys:
            value = select(config, key)
            if not fine(value) and not (value is None and key in OPEN):
                raise ValueError(f"{key}={value} must be {what}{', or null' * (key in OPEN)}")


def _entry(config: Config) -> datasets.Dataset:
    """Return what is to be prepared, with what the command asks to be dropped."""
    own = config.dataset == "compact"
    entry = datasets.user_table(config.name) if own else datasets.find_dataset(config.dataset)
    share, prompts = config.drop_servers_below, config.drop_incomplete_prompts
    if share not in (CATALOGUED, None) and (type(share) not in (int, float) or not 0 < share <= 1):
        raise ValueError(
            f"drop_servers_below={share} must be a share in (0, 1], null or {CATALOGUED}."
        )
    if prompts != CATALOGUED and not isinstance(prompts, bool):
        raise ValueError(f"drop_incomplete_prompts={prompts} must be true, false or {CATALOGUED}.")
    asked = {"drop_servers_below": share, "drop_incomplete_prompts": prompts}
    chosen: dict[str, Any] = {key: value for key, value in asked.items() if value != CATALOGUED}
    return dataclasses.replace(entry, **chosen)


def _probabilities(entry: datasets.Dataset, table: datasets.RoutingTable) -> np.ndarray:
    """Return departure probabilities [P, N] by the settings with which the dataset is run."""
    name = entry.name if entry.name in datasets.CATALOGUE else "compact"
    # The other sources' files name what differs from RouterBench's.
    files = (SOURCES / f"{one}.yaml" for one in ("routerbench", name))
    settings = omegaconf.OmegaConf.merge(*(omegaconf.OmegaConf.load(file) for file in files))
    keys = ("rho", "cost_rule", "low", "high")
    chosen = {key: omegaconf.OmegaConf.select(settings, key) for key in keys}
    return datasets.departure_probabilities(table.performance, table.cost, **chosen)
