"""What was asked of the simulator (`targets.yaml`), set beside what was measured."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

ASKED = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())


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

    for name, target in ASKED["speeds"]["gpu" if gpu else "cpu"].items():
        add(f"rounds a second, {name}", speeds.get(name), target)
    for row in rows["numpy"]:
        if row["case"] in ASKED["ratios"] and not gpu:
            target = ASKED["ratios"][row["case"]]
            add(f"times {row['loop']}, {row['case']}", row["ratio"], target)
    grown = {row["value"]: row for row in rows["growth"] if row["axis"] == "horizon"}
    longest = grown.get(100_000, {}).get("run_cost_over_row_above")
    add("cost of T=100,000 / T=10,000", longest, ASKED["growth"], False)
    for row in rows["compile"]:
        what = f"compile seconds, {row['case']}"
        add(what, row["cold_seconds"], ASKED["compile_seconds"], False)
    swept = rows.get("sweep", ())
    for row in swept:
        if row["rounds_alone"]:
            bound = ASKED["sweep_ratio"] * row["rounds_alone"] + ASKED["sweep_beside"]
            what = f"seconds of {row['points']:,} points, {row['caches']}"
            add(what, row["seconds"], bound, False)
    for row in rows.get("worlds", ()):
        of_recorder = row["what"] in ASKED["costs"] or row["what"].startswith("record=")
        if row["policy"] == "acqb" and of_recorder:
            most = ASKED["costs"].get(row["what"], ASKED["cost_of_a_recorder"])
            add(f"cost of {row['what']}, share of an ACQB round", row["cost"], most, False)
    for row in swept[:1]:
        what = f"seconds of composing and checking {row['points']:,} points"
        add(what, row["composing"], ASKED["composing_seconds"], False)
    if gpu:
        reached = {row["case"]: row["share_of_floor"] for row in rows["device"]}
        for name, target in ASKED["shares"].items():
            add(f"share of the floor, {name}", reached.get(name), target)
        total = rows["study"][-1]["seconds"] if rows["study"] else None
        add("seconds of the offline study", total, ASKED["study_seconds"], False)
    return compared
