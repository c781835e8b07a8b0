"""Settings of ACQB ranked over several sensitivity studies, as a preset for all is chosen."""

from collections.abc import Mapping

import polars as pl

from cqbjax.figures.sensitivity import MEASURE

SHARED = ("alpha_scale", "lambda0", "c1")  # what studies of any K and rho can be ranked by


def ranked(studies: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """Rank settings over several studies, each K and arrival rate a cell of equal weight.

    M and rho stay at the preset's: the paper's M depends on K, and another rho is another problem.

    Args:
        studies: name -> what `sensitivity.frame` returned.

    Returns:
        By setting, least first: `preset`, `mean_ratio`, the geometric mean over cells of the mean
        of Q - Q* divided by the preset's, and that ratio in each cell. Settings that a cell lacks
        are left out.

    Raises:
        ValueError: a study without these columns or without the preset, two presets, or a mean of
            Q - Q* that is not positive, which has no geometric mean.
    """
    by_cell: dict[str, pl.DataFrame] = {}
    for name, made in studies.items():
        by_cell |= _ratios(name, made)
    made, *others = by_cell.values()
    for one in others:
        made = made.join(one, on=[*SHARED, "preset"])
    if made["preset"].sum() != 1:
        raise ValueError("the studies are of different presets, one is needed")
    mean = pl.mean_horizontal(pl.col(key).log() for key in by_cell).exp().alias("mean_ratio")
    said = dict.fromkeys(one["stand_in"][0] for one in studies.values() if "stand_in" in one)
    made = made.select(*SHARED, "preset", mean, *by_cell).sort("mean_ratio")
    return made.with_columns(stand_in=pl.lit("; ".join(said))) if said else made


def _ratios(name: str, made: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """Return cell -> settings with their ratio to the preset, for each K and rate of a study."""
    lacking = {*SHARED, "M", "K", "arrival_rate", "preset", MEASURE} - set(made.columns)
    if lacking:
        raise ValueError(f"{name}: no column {', '.join(sorted(lacking))}, is it a study's?")
    by_cell = {}
    for (size, rate), cell in made.group_by("K", "arrival_rate", maintain_order=True):
        where = f"{name}, K={size}, arrival rate {rate}"
        if cell["preset"].sum() != 1:
            raise ValueError(f"{where}: one row must be preset")
        own = cell.filter("preset").row(0, named=True)
        held = [pl.col(key) == own[key] for key in ("M", "rho") if key in cell.columns]
        cell = cell.filter(*held)
        if not (cell[MEASURE] > 0).all():
            raise ValueError(f"{where}: {MEASURE} must be positive in every row to be ranked")
        key = f"{name} K={size} λ={rate:g}"
        by_cell[key] = cell.select(*SHARED, "preset", (pl.col(MEASURE) / own[MEASURE]).alias(key))
    return by_cell
