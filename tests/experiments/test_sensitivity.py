"""The sensitivity study: which settings it runs, what it says of them, and its one command."""

import numpy as np
import polars as pl
import pytest
import xarray as xr
from composing import REPOSITORY, compose_config, run_command

from cqbjax.cli._instantiate import make
from cqbjax.experiments import configs, grid, sensitivity, study_types
from cqbjax.experiments.grid import GridPoint
from cqbjax.experiments.sensitivity import Sensitivity, write_label
from cqbjax.figures import sensitivity as sensitivity_figures
from cqbjax.results import files

PRESET = {"alpha_scale": 0.2, "lambda0": 1.0, "c1": 0.25, "rho": None, "M": 1}
SMALL = {"alpha_scale": [0.1, 0.5], "lambda0": [2], "c1": [1], "M": [3], "rho": [1.0]}


def list_small(preset=PRESET, **changes):
    return list(Sensitivity(**SMALL | changes).list_settings(preset).values())


def pick(setting, *keys):
    return tuple(setting[key] for key in keys)


def test_sensitivity_varies_single_constants_and_a_grid():
    settings = list_small()
    assert settings[0] == PRESET and len({*map(write_label, settings)}) == len(settings)
    grid = {pick(s, "alpha_scale", "c1") for s in settings if pick(s, "lambda0", "M") == (1.0, 1)}
    assert grid == {(a, c) for a in (0.1, 0.2, 0.5) for c in (0.25, 1.0)}
    others = [s for s in settings if pick(s, "lambda0", "M") != (1.0, 1)]
    assert [pick(s, "lambda0", "M") for s in others] == [(2.0, 1), (1.0, 3)]
    assert all(pick(s, "alpha_scale", "c1", "rho") == (0.2, 0.25, None) for s in others)


def test_rho_varies_only_where_the_source_has_one():
    with_rho = list_small(PRESET | {"rho": 5.0})
    assert {s["rho"] for s in with_rho} == {1.0, 5.0}
    assert len(with_rho) == len(list_small()) + 1


def test_empty_lists_keep_a_constant_fixed():
    assert {pick(s, "M", "lambda0") for s in list_small(M=[], lambda0=[])} == {(1, 1.0)}


def test_preset_without_num_samples_uses_the_papers_number():
    config = {"source": {}, "alpha_scale": 0.2, "lambda0": 1.0, "c1": 0.25, "num_samples": None}
    assert [sensitivity.read_preset(config, size)["M"] for size in (1, 2)] == [1, 9]
    assert sensitivity.read_preset(config | {"num_samples": 4}, 2)["M"] == 4
    for wrong in ({"c1": "fast"}, {"alpha_scale": True}, {"num_samples": 2.5}):
        ((key, value),) = wrong.items()
        with pytest.raises(ValueError, match=f"^{key}={value} must be "):
            sensitivity.read_preset(config | wrong, 1)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"lambda0": [0]}, "kind.lambda0=0 must be a number above 0"),
        ({"M": [1.5]}, "kind.M=1.5 must be a whole number of at least 1"),
        ({"c1": [-1]}, "kind.c1=-1 must be a number of at least 0"),
    ],
)
def test_invalid_sensitivity_values_are_rejected_in_one_sentence(wrong, message):
    with pytest.raises(ValueError) as caught:
        Sensitivity(**wrong)
    assert str(caught.value) == message


def plant(settings, gaps, seeds=6, preset=PRESET):
    """Return results in which a setting's Q - Q* is its planted gap plus a noise of the seed."""
    noise = 3.0 * np.random.default_rng(0).normal(size=(1, 1, seeds, 1))
    queue = np.asarray(gaps, float)[:, None, None, None] + noise + np.zeros((1, 1, 1, 4))
    axes = ("policy", "arrival_rate", "seed", "round")
    variables = {
        "queue_length": (axes, queue),
        "regret": (axes, 10 * queue * np.arange(1, 5) / 4),
        "optimal_queue_length": (axes[1:], np.zeros(queue.shape[1:])),
    }
    coords = {"policy": [*map(write_label, settings)], "arrival_rate": [0.7]}
    return xr.Dataset(
        variables, coords | {"seed": range(seeds), "round": range(4)},
        {"K": 1, "preset": write_label(preset)},
    )  # fmt: skip


def test_differences_from_the_preset_are_paired_by_seed():
    settings = list_small()
    gaps = 5.0 + np.arange(len(settings))
    gaps[3] = 4.0
    made = sensitivity.tabulate_settings(sensitivity.summarise_settings(plant(settings, gaps)))
    assert "rho" not in made.columns
    assert made.row(0, named=True)["preset"] is False and made["preset"].sum() == 1
    best = made.row(0, named=True)
    assert best["over_preset"] == pytest.approx(-1.0)
    # Every seed's noise is met by all settings, so the difference has none.
    assert best["over_preset_high"] - best["over_preset_low"] < 1e-9
    assert best["mean_queue_regret_high"] - best["mean_queue_regret_low"] > 1
    # Cumulative regret is that of the last round.
    assert best["cumulative_regret"] == pytest.approx(10 * best["mean_queue_regret"])


def test_settings_with_another_rho_are_not_ranked():
    preset = PRESET | {"rho": 5.0}
    settings = list_small(preset)
    same = [s for s in settings if s["rho"] == 5.0]
    other = [s for s in settings if s["rho"] == 1.0]
    rows = sensitivity.summarise_settings(plant(same, 5.0 + np.arange(len(same)), preset=preset))
    rows += sensitivity.summarise_settings(plant(other, [0.5], preset=preset))
    made = sensitivity.tabulate_settings([row | {"stand_in": "a slice"} for row in rows])
    assert "Data: a slice" in sensitivity_figures.draw_sensitivity(made, "Planted").get_suptitle()
    assert made.row(0, named=True)["rho"] == 1.0 and made.row(0, named=True)["over_preset"] is None


def test_sensitivity_figure_has_a_panel_per_constant_and_marks_the_preset():
    settings = list_small()
    rows = sensitivity.summarise_settings(plant(settings, 5.0 + np.arange(len(settings))))
    figure = sensitivity_figures.draw_sensitivity(sensitivity.tabulate_settings(rows), "Planted")
    *panels, grid = figure.axes
    assert figure.get_suptitle().startswith("Planted: mean over 6 seeds")
    assert [panel.get_xlabel() for panel in panels] == [
        "scale of α", "ridge λ₀", "exploration c₁", "Thompson samples, M",
    ]  # fmt: skip
    shown = [[tick.get_text() for tick in panel.get_xticklabels()] for panel in panels]
    assert shown == [["0.1", "0.2", "0.5"], ["1", "2"], ["0.25", "1"], ["1", "3"]]
    for panel in panels:
        marked = panel.lines[-1]
        assert marked.get_ydata().tolist() == pytest.approx([5.0 + planted_noise()])
    assert len(grid.texts) == 6 and len(grid.patches) == 1
    assert grid.patches[0].get_xy() == (0.5, -0.5)


def planted_noise():
    return float(3.0 * np.random.default_rng(0).normal(size=6).mean())


def test_other_constants_vary_at_the_rho_of_the_preset_only():
    values = PRESET | {"num_samples": 1, "source": {"rho": 5.0}, "K": 1, "kind": SMALL}
    config = configs.ComposedConfig(configs.to_config(values))
    points = Sensitivity(**SMALL).compose([GridPoint("K=1", config, {}, {})], config, {})
    varied = {one.name: [key for key in SMALL if one.config.kind[key]] for one in points}
    assert varied == {"K=1,rho=1": [], "K=1,rho=5": ["alpha_scale", "lambda0", "c1", "M"]}


@pytest.mark.slow
def test_every_rho_is_a_separate_grid_point():
    config = compose_config(
        "kind=sensitivity", "+source.rho=2.0", "source._target_=cqbjax.sources.Synthetic",
        "kind.rho=[1.0]", "kind.M=[3]", "kind.c1=[]", "kind.lambda0=[]", "kind.alpha_scale=[]",
    )  # fmt: skip
    made = {}
    for point in study_types.make_study_type(config, make).compose(
        grid.compose(config), config, {}
    ):
        own, preset = make(point.config.kind), sensitivity.read_preset(point.config, 1)
        made[point.name] = list(own.list_settings(preset))
        assert own.preset == "alpha_scale=0.2 lambda0=1.0 c1=0.25 rho=2.0 M=1"
        assert point.config.first_seed == 1_000_000
    assert made == {
        "K=1,rho=1": ["alpha_scale=0.2 lambda0=1.0 c1=0.25 rho=1.0 M=1"],
        "K=1,rho=2": [f"alpha_scale=0.2 lambda0=1.0 c1=0.25 rho=2.0 M={m}" for m in (1, 3)],
    }


@pytest.mark.slow
def test_sensitivity_command_writes_table_and_figure(tmp_path):
    words = (
        "kind=sensitivity", "experiment=synthetic", "K=1", "num_seeds=2", "horizon=12",
        "num_servers=2", "dim=2",
        "arrival_rate=0.4", "kind.c1=[]", "kind.lambda0=[]", "kind.M=[]",
        f"results_dir={tmp_path}",
    )  # fmt: skip
    reckoned = run_command("run", *words, "kind.alpha_scale=[0.6]", "dry_run=true")
    assert "1 points, 0 of them stored; 2 groups" in reckoned.stdout
    assert not list(tmp_path.rglob("*"))
    done = run_command("run", *words, "kind.alpha_scale=[0.6]")
    assert done.returncode == 0, done.stderr
    made = pl.read_csv(tmp_path / "tables" / "sensitivity_synthetic.csv")
    assert sorted(made["alpha_scale"]) == [0.2, 0.6] and made["seeds"].unique().to_list() == [2]
    assert (tmp_path / "figures" / "sensitivity_synthetic.png").stat().st_size > 1000
    # What is stored is not run again: a further value alone is.
    folder = tmp_path / "data" / "sensitivity_synthetic"
    (first,) = folder.glob("*.nc")
    written = first.stat().st_mtime_ns
    wider = run_command("run", *words, "kind.alpha_scale=[0.6,0.9]")
    assert wider.returncode == 0, wider.stderr
    (second,) = set(folder.glob("*.nc")) - {first}
    assert first.stat().st_mtime_ns == written
    (manifest,) = files.read_description(second)["points"]
    labels = manifest["policies"]
    assert [label.split()[0] for label in labels] == ["alpha_scale=0.9"]
    again = pl.read_csv(tmp_path / "tables" / "sensitivity_synthetic.csv")
    assert again.filter(pl.col("alpha_scale") != 0.9).equals(made)


TABLES = REPOSITORY / "results" / "tables"
STUDIES = ("routerbench", "routerbench_K2", "mmlu_pro_K1", "mmlu_pro_K2")
KEYS = ["alpha_scale", "lambda0", "c1"]


def test_committed_sensitivity_ranking_matches_the_committed_tables():
    """By the geometric mean over all cells of Q - Q* divided by the preset's."""
    ranked, ratios = pl.read_csv(TABLES / "sensitivity_ranked.csv"), []
    for name in STUDIES:
        for (size, rate), cell in pl.read_csv(TABLES / f"sensitivity_{name}.csv").group_by(
            "K", "arrival_rate"
        ):
            preset = cell.filter("preset")
            # Another rho is another problem, and the paper's M depends on K.
            same = cell.join(preset.select("M", "rho"), on=["M", "rho"])
            ratio = pl.col("mean_queue_regret") / preset["mean_queue_regret"].item()
            ratios.append(same.select(*KEYS, ratio=ratio))
            column = ranked.select(*KEYS, expected=f"{name} K={size} λ={rate:g}")
            joined = column.join(ratios[-1], on=KEYS)
            assert joined.height == ranked.height
            assert joined["ratio"].to_list() == pytest.approx(joined["expected"].to_list())
    means = pl.concat(ratios).group_by(KEYS).agg(pl.col("ratio").log().mean().exp(), pl.len())
    joined = ranked.join(means.filter(len=len(ratios)), on=KEYS, maintain_order="left")
    assert joined.height == ranked.height and joined["mean_ratio"].is_sorted()
    assert joined["ratio"].to_list() == pytest.approx(joined["mean_ratio"].to_list())
    assert joined["preset"][0]
