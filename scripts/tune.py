"""Compare ACQB's settings on seeds that no reported number uses, to choose a preset.

    python scripts/tune.py experiment=synthetic
    python scripts/tune.py experiment=routerbench num_seeds=8 horizon=2000

All settings of a point share one compiled program. Writes `tables/tuning_<name>` under
`results_dir`: the time average of Q - Q* and the cumulative regret of every setting.
"""

import dataclasses
import itertools
import sys
from pathlib import Path

import hydra
import polars as pl
import xarray as xr
from hydra.utils import instantiate
from omegaconf import DictConfig, open_dict

from cqbjax import backend, study, summaries, tables
from cqbjax.policies import Acqb
from cqbjax.progress import bar

study.register_resolvers()

# Far from 0 .. num_seeds - 1, which every study reports.
FIRST_SEED = 1_000_000
ALPHA_SCALES = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
C1 = (0.1, 0.25, 0.5, 1.0)


def settings(config: DictConfig) -> dict[str, Acqb]:
    """Return one ACQB for each pair of alpha_scale and c1; `tune_grid` may name fewer."""
    base = Acqb(kappa=config.kappa, lambda0=config.lambda0, num_samples=config.num_samples)
    grid = config.get("tune_grid", {})
    pairs = itertools.product(grid.get("alpha_scale", ALPHA_SCALES), grid.get("c1", C1))
    return {
        f"alpha_scale={alpha:g} c1={c1:g}": dataclasses.replace(base, alpha_scale=alpha, c1=c1)
        for alpha, c1 in pairs
    }


def rows(data: xr.Dataset) -> list[dict[str, object]]:
    """Summarise every setting: means over seeds with their 95% intervals."""
    gap = summaries.mean_ci(summaries.queue_regret(data).mean("round"))
    regret = summaries.mean_ci(data.regret.isel(round=-1))
    found = []
    for rate, label in itertools.product(data.arrival_rate.values, data.policy.values):
        if label == "optimal":
            continue
        at = {"arrival_rate": rate, "policy": label}
        row: dict[str, object] = {"K": data.attrs["K"], "arrival_rate": float(rate)}
        row |= {"setting": str(label)}
        for name, summary in (("mean_queue_regret", gap), ("cumulative_regret", regret)):
            row[name] = float(summary["mean"].sel(at))
            row[f"{name}_low"] = float(summary["low"].sel(at))
            row[f"{name}_high"] = float(summary["high"].sel(at))
        found.append(row)
    return found


@hydra.main(version_base="1.3", config_path="../conf", config_name="config")
def main(config: DictConfig) -> None:
    """Run the grid at every point of an experiment and write the table."""
    backend.configure()
    with open_dict(config):
        config.first_seed = FIRST_SEED
    console = study.console()
    found: list[dict[str, object]] = []
    try:
        with bar() as progress:
            for point in study.compose(config):
                source = instantiate(point.config.source)
                point = study.settle(point, source)
                data = study.run(point, source, settings(point.config), progress)
                found += rows(data)
    except ValueError as error:
        sys.exit(f"error: {error}")
    frame = pl.DataFrame(found).sort("K", "arrival_rate", "mean_queue_regret")
    stem = Path(config.results_dir) / "tables" / f"tuning_{config.name}"
    caption = f"Settings of ACQB, {config.name}, {config.num_seeds} seeds from {FIRST_SEED}"
    tables.save_table(frame, stem, caption)
    tables.print_table(frame, caption, console)


if __name__ == "__main__":
    main()
