"""Turn a sweep's result into one long table and a figure over its swept keys.

python scripts/aggregate.py results/data/grid --rounds 500 1000 --against acqb
python scripts/aggregate.py results/data/grid --metrics throughput --over alpha_scale c1
python scripts/aggregate.py results/data/ablation_load --loads
"""

import argparse
import functools
from pathlib import Path

from cqbjax.cli._command import Arguments, run_plain

METRICS = (
    "gap, queue_length, regret, throughput, explored, or a recorded array; default: gap, "
    "throughput and all recorded arrays"
)

ARGUMENTS = Arguments(description="Turn a sweep's result into one long table.")
_add = ARGUMENTS.add_argument
_add("folder", type=Path, help="of the result: results/data/NAME")
_add("--metrics", nargs="+", default=[], metavar="METRIC", help=METRICS)
_add("--rounds", nargs="+", type=int, default=[], metavar="T", help="default: the last one")
_add("--against", metavar="POLICY", help="differences from it, paired by seed")
_add("--over", nargs="+", default=[], metavar="KEY", help="one or two keys of the figure")
_add("--log", action="store_true", help="a logarithmic vertical axis")
_add("--loads", action="store_true", help="a table of the largest stable arrival rates")
_add("--out", type=Path, metavar="STEM", help="default: FOLDER/../../aggregated/NAME")


def aggregate(arguments: argparse.Namespace) -> None:
    """Write the table as Parquet and CSV, and the figure of the first metric.

    Raises:
        ValueError: naming a wrong argument.
    """
    from cqbjax.figures import draw_over_keys, save_figure
    from cqbjax.results import store as results
    from cqbjax.results import tables
    from cqbjax.results.frame import aggregate_points, save_aggregate
    from cqbjax.results.metrics import find_recorded

    for key in ("metrics", "rounds", "over"):
        values = getattr(arguments, key)
        if len(set(values)) < len(values):
            raise ValueError(f"--{key} {' '.join(map(str, values))} must name nothing twice")
    if len(arguments.over) > 2:
        raise ValueError(f"--over {' '.join(arguments.over)} must name one or two keys")
    folder = arguments.folder.resolve()
    if arguments.out is None and folder.parent.name != "data":
        raise ValueError(
            f"{arguments.folder} is not results/data/NAME: name one, or give --out STEM"
        )
    points = results.load_points(arguments.folder)
    metrics = arguments.metrics or ["gap", "throughput", *find_recorded(points)]
    table = aggregate_points(points, metrics, arguments.rounds, arguments.against)
    last = arguments.rounds[-1] if arguments.rounds else None
    figure = draw_over_keys(points, metrics[0], last, arguments.over, arguments.log)
    stem = arguments.out or folder.parents[1] / "aggregated" / folder.name
    written: tuple[Path, ...] = ()
    if arguments.loads:
        loads, caption = tables.load_table(points), f"Largest stable loads: {stem.name}"
        written = tables.save_table(loads, stem.with_name(f"{stem.name}_loads"), caption)
        tables.print_table(loads, caption)
    written += (*save_aggregate(table, stem), save_figure(figure, stem))
    print(f"{len(points)} points, {table.height:,} rows: {', '.join(map(str, written))}")


main = functools.partial(run_plain, aggregate, ARGUMENTS)
