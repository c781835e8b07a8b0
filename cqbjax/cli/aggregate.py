"""Turn a sweep's result into one long table and a figure over its swept keys.

python scripts/aggregate.py results/data/grid --rounds 500 1000 --against acqb
python scripts/aggregate.py results/data/grid --metrics throughput --over alpha_scale c1
python scripts/aggregate.py results/data/ablation_load --loads
python scripts/aggregate.py results/data/paretobandit --queries
"""

import argparse
from pathlib import Path

from cqbjax.cli._start import Arguments, start_plain

METRICS = (
    "gap, queue_length, regret, throughput, explored, or what a recorder left; default: gap, "
    "throughput and all that recorders left"
)

ARGUMENTS = Arguments(description="Turn a sweep's result into one long table.")
_add = ARGUMENTS.add_argument
_add("folder", type=Path, help="of the result: results/data/NAME")
_add("--metrics", nargs="+", default=[], metavar="METRIC", help=METRICS)
_add("--rounds", nargs="+", type=int, default=[], metavar="T", help="default: the last one")
_add("--against", metavar="POLICY", help="differences from it, paired by seed")
_add("--over", nargs="+", default=[], metavar="KEY", help="one or two keys of the figure")
_add("--loads", action="store_true", help="a table of the arrival rates that policies bear")
_add("--queries", action="store_true", help="the rows of queries as one Parquet (queries=true)")
_add("--out", type=Path, metavar="STEM", help="default: FOLDER/../../aggregated/NAME")


def main() -> None:
    """Aggregate what the command line names."""
    start_plain(aggregate, ARGUMENTS)


def aggregate(asked: argparse.Namespace) -> None:
    """Write the table as Parquet and CSV, and the figure of the first metric."""
    from cqbjax.figures import files as figure_files
    from cqbjax.figures import sweeps
    from cqbjax.results import store as results
    from cqbjax.results import tables
    from cqbjax.results.aggregate import aggregated, save
    from cqbjax.results.metrics import own_arrays
    from cqbjax.results.rows import save_queries

    for key in ("metrics", "rounds", "over"):
        given = getattr(asked, key)
        if len(set(given)) < len(given):
            raise ValueError(f"--{key} {' '.join(map(str, given))} must name nothing twice")
    if len(asked.over) > 2:
        raise ValueError(f"--over {' '.join(asked.over)} must name one or two keys")
    folder = asked.folder.resolve()
    if asked.out is None and folder.parent.name != "data":
        raise ValueError(f"{asked.folder} is not results/data/NAME: name one, or give --out STEM")
    points = results.load_points(asked.folder)
    metrics = asked.metrics or ["gap", "throughput", *own_arrays(points)]
    table = aggregated(points, metrics, asked.rounds, asked.against)
    last = asked.rounds[-1] if asked.rounds else None
    figure = sweeps.draw_over_keys(points, metrics[0], last, asked.over)
    stem = asked.out or folder.parents[1] / "aggregated" / folder.name
    written: tuple[Path, ...] = ()
    if asked.loads:
        borne, name = tables.load_table(points), f"{stem.name}_loads"
        written = tables.save_table(borne, stem.with_name(name), f"Loads borne: {stem.name}")
        tables.print_table(borne, f"Loads borne: {stem.name}")
    if asked.queries:
        rows = stem.with_name(f"{stem.name}_queries.parquet")
        print(f"{save_queries(points, rows):,} queries: {rows}")
    written += (*save(table, stem), *figure_files.save(figure, stem))
    print(f"{len(points)} points, {table.height:,} rows: {', '.join(map(str, written))}")
