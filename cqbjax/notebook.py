"""Functions for notebooks: make policies and routers by label, sweep them, and plot results."""

import dataclasses
import functools
import re
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import xarray as xr

from cqbjax.core.inputs import suggest_names
from cqbjax.core.labels import split_label
from cqbjax.engine.sweep import sweep as _sweep
from cqbjax.engine.validation import choose_seeds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from cqbjax.core.types import Policy
    from cqbjax.offline import OfflinePolicy

# Arguments of `sweep` that were renamed.
RENAMED = {"arrival_rates": "arrival_rate", "assortment_size": "K"}


def policy(label: str, **constants: Any) -> "Policy | OfflinePolicy":
    """Return a policy by the label that the command line gives it (`policy=[label]`).

    Labels are those of `conf/policy` and `conf/router`, the shipped ones and those of a `conf/` in
    the current folder. Some policies learn offline from a table: routers (`knn`,
    `carrot_fallback`), and ACQB with a prior (`acqb_warm`) or with a trained head (`acqb_cl`).
    `cqbjax.sweep` trains them if its source is a `cqbjax.datasets.dataset_source`.

    Args:
        label: such as `lints`.
        constants: keys of the command line that the policy reads (`lints_alpha=0.5`), or attributes
            of its class (`alpha=0.5`). Constants that are not given have the defaults of the
            command line.

    Raises:
        ValueError: an unknown label or constant; names those that are known.
    """
    return _make_policy(label, constants, {})


def _make_policy(label: str, constants: Mapping[str, Any], study: Mapping[str, Any]) -> Any:
    """Return `policy(label, **constants)`, with the keys of a study that the policy reads."""
    # A sweep of policies that are given as objects does not wait for Hydra.
    from cqbjax.cli import _compose, _instantiate

    with _compose.initialize_hydra():
        bases = _compose.list_bases()
        if split_label(label, bases)[0] not in bases:
            known = _compose.list_choices("policy")
            raise ValueError(
                f"policy {label} is unknown{suggest_names(label, _compose.list_labels(), known)}"
            )
        (job,) = _compose.compose_jobs([[f"policy=[{label}]"]])
    read = {*re.findall(r"\$\{(\w+)\}", str(job.config.unresolved["policy"]))}
    keys = {key: value for key, value in {**study, **constants}.items() if key in read}
    (made,) = map(_instantiate.make, job.config.with_values(keys)["policy"].values())
    attributes = {field.name for field in dataclasses.fields(made) if field.init}
    for key in constants.keys() - read - attributes:
        raise ValueError(
            f"policy {label} has no constant {key}{suggest_names(key, sorted(read | attributes))}"
        )
    return dataclasses.replace(made, **{key: constants[key] for key in constants.keys() - keys})


@functools.wraps(_sweep)
def sweep(policies: Mapping[str, Any] | Sequence[str], source: Any, **arguments: Any) -> xr.Dataset:
    """Instantiate and train the policies, then run `cqbjax.engine.sweep.sweep`."""
    for old in arguments.keys() & RENAMED:
        raise TypeError(f"sweep: {old} is now {RENAMED[old]}, as on the command line")
    if isinstance(policies, list | tuple) and all(isinstance(one, str) for one in policies):
        policies = {label: label for label in policies}
    if isinstance(policies, Mapping):
        study = {key: value for key, value in arguments.items() if key == "horizon"}
        policies = {
            label: _make_policy(one, {}, study) if isinstance(one, str) else one
            for label, one in policies.items()
        }
    # A router or a table exists only if its package is imported, which loads readers of tables.
    if "cqbjax.offline" not in sys.modules and "cqbjax.datasets" not in sys.modules:
        return _sweep(policies, source, **arguments)
    return _sweep_trained(policies, source, **arguments)


def _sweep_trained(policies: Any, source: Any, **arguments: Any) -> xr.Dataset:
    """Train the policies that learn from a table, then run the engine's sweep."""
    from cqbjax.datasets import DatasetSource
    from cqbjax.offline import TrainedRouter, fits
    from cqbjax.offline.policies import select_untrained, train_policies

    if isinstance(policies, Mapping):
        # A router serves FIFO.
        policies = {
            label: TrainedRouter(one) if hasattr(one, "tune") and hasattr(one, "fit") else one
            for label, one in policies.items()
        }
        learning = select_untrained(policies)
        if learning and not isinstance(source, DatasetSource):
            raise ValueError(
                f"policy {next(iter(learning))} learns from a table of prompts x LLMs: give "
                "source=cqbjax.datasets.dataset_source(NAME, DATA_DIR) itself, not its queries"
            )
        if learning:
            seeds = choose_seeds(arguments.get("num_seeds"), arguments.get("first_seed", 0),
                                 arguments.get("seeds"))  # fmt: skip
            problem = source.queries.problem(arguments.get("K", 1), arguments.get("horizon", 1))
            for one in learning.values():
                one.check(problem)
            policies = train_policies(policies, source, seeds, fits.cache_folder(None), None)
    drawn = source.queries if isinstance(source, DatasetSource) else source
    return _sweep(policies, drawn, **arguments)


def plot(data: xr.Dataset) -> "Figure":
    """Draw queue lengths and cumulative regret of a sweep over rounds, with 95% intervals.

    Args:
        data: from `cqbjax.sweep` or `cqbjax.results.load`.

    Returns:
        A figure with a row of two panels for each arrival rate. Policies have the same colours as
        in all figures.

    Raises:
        ValueError: `data` holds only the optimal policy.
    """
    from cqbjax.figures import draw_curves

    return draw_curves([data], ["queue_length", "regret"])
