"""What was asked of the simulator, set beside what was measured."""

from collections.abc import Mapping, Sequence
from typing import Any

# Rounds a second of ACQB: two CPU cores, one H100-class GPU.
SPEEDS = {
    "cpu": {
        "d=5 N=5 K=1": 250_000.0,
        "d=5 N=5 K=2": 100_000.0,
        "d=384 N=14 K=1": 1_500.0,
        "d=384 N=112 K=1": 150.0,
    },
    "gpu": {
        "d=5 N=5 K=1": 10_000_000.0,
        "d=384 N=14 K=1": 150_000.0,
        "d=384 N=112 K=1": 20_000.0,
    },
}
# Times the NumPy loop on one core.
RATIOS = {"d=5 N=5 K=1": 40.0, "d=384 N=14 K=1": 80.0}
# 1e5 rounds against 1e4.
GROWTH = 11.0
COMPILE_SECONDS = 15.0
# Of the bandwidth floor, where the GPU's target is half of it.
SHARE = {"d=384 N=14 K=1": 0.5}
STUDY_SECONDS = 300.0
# A sweep of 1,000 points: times the seconds of its rounds alone, and seconds beside.
# Of an ACQB round at d = 5, a recorder alone and rows of queries.
COST_OF_A_RECORDER, COSTS = 0.05, {"queries=true": 0.15}
SWEEP_RATIO, SWEEP_BESIDE, COMPOSING_SECONDS = 1.3, 30.0, 2.0


def compare(
    rows: Mapping[str, Sequence[Mapping[str, Any]]],
    speeds: Mapping[str, float],
    gpu: bool,
    quick: bool,
) -> list[dict[str, Any]]:
    """Return a row a target: what, measured (None if it was not), target, bound, met.

    Args:
        rows: the sections measured.
        speeds: problem -> rounds a second of the best batch.
        gpu: whether a GPU ran it; targets for other hardware are left out.
        quick: the cases were shorter than the targets', so nothing is said to be met.
    """
    compared = []

    def add(what: str, measured: float | None, target: float, least: bool = True) -> None:
        met = None
        if measured is not None and not quick:
            met = measured >= target if least else measured <= target
        bound = "at least" if least else "at most"
        compared.append(
            {"what": what, "measured": measured, "target": target, "bound": bound, "met": met}
        )

    for name, target in SPEEDS["gpu" if gpu else "cpu"].items():
        add(f"rounds a second, {name}", speeds.get(name), target)
    for row in rows["numpy"]:
        if row["case"] in RATIOS and not gpu:
            add(f"times {row['loop']}, {row['case']}", row["ratio"], RATIOS[row["case"]])
    grown = {row["value"]: row for row in rows["growth"] if row["axis"] == "horizon"}
    longest = grown.get(100_000, {})
    add("cost of T=100,000 / T=10,000", longest.get("run_cost_over_row_above"), GROWTH, False)
    for row in rows["compile"]:
        add(f"compile seconds, {row['case']}", row["cold_seconds"], COMPILE_SECONDS, False)
    for row in rows.get("sweep", ()):
        if row["rounds_alone"]:
            bound = SWEEP_RATIO * row["rounds_alone"] + SWEEP_BESIDE
            add(
                f"seconds of {row['points']:,} points, {row['caches']}",
                row["seconds"],
                bound,
                False,
            )
    costs = [row for row in rows.get("worlds", ()) if row["policy"] == "acqb"]
    for row in costs:
        if row["what"] in COSTS or row["what"].startswith("record="):
            most = COSTS.get(row["what"], COST_OF_A_RECORDER)
            add(f"cost of {row['what']}, share of an ACQB round", row["cost"], most, False)
    for row in list(rows.get("sweep", ()))[:1]:
        what = f"seconds of composing and checking {row['points']:,} points"
        add(what, row["composing"], COMPOSING_SECONDS, False)
    if gpu:
        reached = {row["case"]: row["share_of_floor"] for row in rows["device"]}
        for name, target in SHARE.items():
            add(f"share of the floor, {name}", reached.get(name), target)
        total = rows["study"][-1]["seconds"] if rows["study"] else None
        add("seconds of the offline study", total, STUDY_SECONDS, False)
    return compared
