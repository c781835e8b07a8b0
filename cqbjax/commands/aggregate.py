"""Turn a sweep's result into one long table and a figure over its swept keys.

python scripts/aggregate.py results/data/grid --rounds 500 1000 --against acqb
python scripts/aggregate.py results/data/grid --metrics throughput --over alpha_scale c1
python scripts/aggregate.py results/data/ablation_load --loads
"""

import argparse
import sys
from pathlib import Path

from cqbjax.commands._refusing import refusing

METRICS = "gap, queue_length, regret, throughput, explored, or an array of a recorder's own"


def main() -> None:
    """Aggregate what the command line names."""
    with refusing():
        aggregate(parse(sys.argv[1:]))


def parse(words: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Turn a sweep's result into one long table.")
    add = parser.add_argument
    add("folder", type=Path, help="of the result: results/data/NAME")
    add("--metrics", nargs="+", default=["gap", "throughput"], metavar="METRIC", help=METRICS)
    add("--rounds", nargs="+", type=int, default=[], metavar="T", help="default: the last one")
    add("--against", metavar="POLICY", help="differences from it, paired by seed")
    add("--over", nargs="+", default=[], metavar="KEY", help="one or two keys of the figure")
    add("--loads", action="store_true", help="a table of the arrival rates that policies bear")
    add("--out", type=Path, metavar="STEM", help="default: FOLDER/../../aggregated/NAME")
    return parser.parse_args(words)


def aggregate(asked: argparse.Namespace) -> None:
    """Write the table as Parquet and CSV, and the figure of the first metric."""
    from cqbjax.figures import files as figure_files
    from cqbjax.figures import sweeps
    from cqbjax.results import stored as results
    from cqbjax.results import tables
    from cqbjax.results.aggregate import aggregated, save

    points = results.load_points(asked.folder)
    table = aggregated(points, asked.metrics, asked.rounds, asked.against)
    last = asked.rounds[-1] if asked.rounds else None
    figure = sweeps.draw_over_keys(points, asked.metrics[0], last, asked.over[:2])
    stem = asked.out or asked.folder.parents[1] / "aggregated" / asked.folder.name
    written: tuple[Path, ...] = ()
    if asked.loads:
        borne, name = tables.load_table(points), f"{stem.name}_loads"
        written = tables.save_table(borne, stem.with_name(name), f"Loads borne: {stem.name}")
        tables.print_table(borne, f"Loads borne: {stem.name}")
    written += (*save(table, stem), *figure_files.save(figure, stem))
    print(f"{len(points)} points, {table.height:,} rows: {', '.join(map(str, written))}")
