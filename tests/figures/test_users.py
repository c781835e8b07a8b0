"""Pictures of what users feel: what they show is what was recorded, and nothing overlaps."""

import re

import numpy as np
import polars as pl
import pytest
import scipy.stats
import yaml
from composing import compose_config
from fabricated import fabricate, save_point
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from cqbjax.cli import report
from cqbjax.core.recorders.users import bin_times, time_bin
from cqbjax.experiments import configs
from cqbjax.figures import draw_cost_quality, draw_times, users
from cqbjax.results.policy_styles import find_style

LABELS = ("optimal", "acqb", "acqb_fifo", "random")
HORIZON = 60
DIMS = ("policy", "arrival_rate", "seed")
DRAW = np.random.default_rng(3)
PRICE = {"optimal": 0.001, "acqb": 0.002, "acqb_fifo": 0.003, "random": 0.02}


def point(rates=(0.7,), price=1.0, **attributes):
    """A point whose queries cost by policy, and are in the system for geometric times."""
    made = fabricate(LABELS, rates, 6, HORIZON, **attributes)
    sizes = tuple(made.sizes[dim] for dim in DIMS)
    cost = np.array([PRICE[label] for label in LABELS])[:, None, None] * price
    for name, level in (("dollars", cost), ("score", 0.9 - 2 * cost)):
        noise = DRAW.uniform(0.9, 1.1, (*sizes, HORIZON))
        made[name] = (*DIMS, "round"), np.broadcast_to(level[..., None], noise.shape) * noise
    waits = DRAW.geometric(0.2, (*sizes, 40)).clip(1, HORIZON)
    bins = np.asarray(time_bin(waits))
    counts = (bins[..., None] == np.arange(len(bin_times(HORIZON)))).sum(axis=-2)
    made["time_in_system"] = (*DIMS, "retried", "time_bin"), np.stack([counts, 0 * counts], -2)
    made["time_99"] = DIMS, np.quantile(waits, 0.99, axis=-1)
    for name in ("away", "in_service"):
        made[name] = (*DIMS, "round"), DRAW.integers(0, 5, (*sizes, HORIZON))
    made["waits"] = (*DIMS, "query"), waits
    return made


def dots(panel):
    """The dots of a panel by the policy of their colour, in the order drawn."""
    colours = {find_style(label).color.lower(): label for label in LABELS}
    return {
        colours[to_hex(drawn[0].get_color())]: (drawn[0], drawn[2]) for drawn in panel.containers
    }


def test_cost_figure_shows_means_with_intervals():
    made = point()
    (panel,) = draw_cost_quality([made]).axes
    drawn = dots(panel)
    assert set(drawn) == set(LABELS) and panel.get_xscale() == "log"
    for label, (dot, bars) in drawn.items():
        last = made.sel(policy=label, arrival_rate=0.7).isel(round=-1)
        assert dot.get_xdata() == pytest.approx(1000 * float(last.dollars.mean()))
        assert dot.get_ydata() == pytest.approx(float(last.score.mean()))
        for axis, (name, bar) in enumerate(zip(("dollars", "score"), bars, strict=True)):
            ends = bar.get_segments()[0][:, axis]
            known = scipy.stats.ttest_1samp(last[name], 0.0).confidence_interval(0.95)
            known = np.array(known) * (1000 if name == "dollars" else 1)
            np.testing.assert_allclose(ends, known, rtol=1e-6)
    assert panel.get_xlabel() == "USD per 1,000 satisfied queries"


def test_cost_figure_joins_swept_points_in_order_and_skips_missing_values():
    swept = [point(price=price, **{"source.rho": rho}) for rho, price in ((10, 1), (2, 3), (5, 2))]
    swept[0]["dollars"][LABELS.index("random")] = np.nan
    figure = draw_cost_quality(swept)
    drawn = dots(figure.axes[0])
    assert (np.diff(drawn["acqb"][0].get_xdata()) < 0).all(), "by rho: 2, 5, 10"
    assert len(drawn["acqb"][0].get_xdata()) == 3 and len(drawn["random"][0].get_xdata()) == 2
    (title,) = [text.get_text() for text in figure.axes[0].texts]
    assert "joined: rho = 2, 5, 10" in title


def test_pareto_line_joins_the_undominated_policies():
    columns = ("policy", "mean", "mean_score")
    rows = [("acqb", 2.0, 0.8), ("zero", 1.0, 0.7), ("random", 3.0, 0.6), ("optimal", 1.0, 0.9)]
    cells = pl.DataFrame(rows, columns, orient="row")
    ends = {f"{end}{of}": None for end in ("low", "high") for of in ("", "_score")}
    panel = Figure().subplots()
    users.draw_costs(panel, cells.with_columns(**ends), ["mean"])
    (line,) = [one for one in panel.get_lines() if one.get_gid() == "pareto"]
    np.testing.assert_allclose(line.get_xydata(), [(1000, 0.7), (2000, 0.8)])


def test_time_figure_shows_the_tail_distribution():
    made = point()
    share = users.compute_tail(made).sel(policy="acqb").isel(arrival_rate=0, seed=2)
    waits = made.waits.sel(policy="acqb").isel(arrival_rate=0, seed=2).values
    for rounds, height in zip(share["time_bin"].values, share.values, strict=True):
        assert height == pytest.approx(np.mean(waits > rounds), abs=1e-9), rounds
    (panel,) = draw_times([made]).axes
    color = find_style("acqb").color.lower()
    (line,) = [one for one in panel.get_lines() if to_hex(one.get_color()) == color][:1]
    mean = users.compute_tail(made).sel(policy="acqb").mean("seed")[0].values
    np.testing.assert_allclose(line.get_ydata(), mean[mean > 1e-9])
    assert (panel.get_xscale(), panel.get_yscale()) == ("log", "log")
    with pytest.raises(ValueError, match="time_in_system was not recorded at every point"):
        draw_times([made.drop_vars("time_in_system")])


@pytest.mark.slow
def test_figures_are_drawn_if_their_arrays_were_recorded():
    whole = [point(), point(K=2)]
    few = dict(users.draw_user_figures(whole, True, "ci"))
    assert list(few) == ["cost_quality", "time_in_system", "waiting"]
    lengths = [panel.get_ylabel() for panel in few["waiting"].axes if panel.axison]
    assert lengths[:3] == ["Queue\nlength", "away", "in_service"] and len(lengths) == 6
    some = [whole[0].drop_vars("score"), whole[1].drop_vars("in_service")]
    assert list(dict(users.draw_user_figures(some, True, "ci"))) == ["time_in_system", "waiting"]
    assert not list(users.draw_user_figures([fabricate(), fabricate(K=2)], True, "ci"))
    many = [point(**{"users.impatient.attempts": n}) for n in range(1, 13)]
    drawn = dict(users.draw_user_figures(many, False, "ci"))
    assert list(drawn) == ["cost_quality", "time_in_system"]
    assert drawn["time_in_system"].axes[0].get_xlabel() == "users.impatient.attempts"


@pytest.mark.slow
def test_titles_stay_within_their_panels():
    point_attributes = {"users": "orbit (return_rate 0.2) and impatient (attempts 100)"}
    swept = [
        point(
            **{**point_attributes, "users.impatient.attempts": n, "users.orbit.return_rate": 0.125}
        )
        for n in (1, 10, 100)
    ]
    for draw in (draw_cost_quality, draw_times):
        figure = draw(swept)
        figure.draw_without_rendering()
        ends = [panel.get_window_extent().x0 for panel in figure.axes][1:] + [figure.bbox.x1]
        for panel, end in zip(figure.axes, ends, strict=True):
            for text in panel.texts:
                assert text.get_window_extent().x1 <= end, text.get_text()
        assert figure._suptitle.get_window_extent().x1 <= figure.bbox.x1


@pytest.mark.slow
def test_report_redraws_user_figures_from_stored_results(tmp_path):
    words = "experiment=synthetic", f"horizon={HORIZON}", "K=1", f"results_dir={tmp_path}"
    config = compose_config(*words)
    text = yaml.safe_dump(configs.to_plain(config))
    made = point(experiment="felt", parameters="disjoint")
    manifest = {"point": "K=1", "varied": {"K": 1}, "experiment": "felt"}
    save_point(made, manifest, text, tmp_path / "data" / "felt" / "K=1.nc")
    report.report(report.ARGUMENTS.parse_args([str(tmp_path), "felt"]))
    drawn = {path.name for path in (tmp_path / "figures").glob("*.png")}
    ends = ("", "_cost_quality", "_time_in_system", "_waiting")
    assert drawn == {f"felt{end}.png" for end in ends}
    written = []
    for _ in range(2):
        report.report(report.ARGUMENTS.parse_args([str(tmp_path), "felt", "--figure", "paper"]))
        written.append({path: path.read_bytes() for path in (tmp_path / "figures").glob("*.pdf")})
    assert written[0] == written[1] and len(written[0]) == len(drawn)
    assert all(re.search(rb"MediaBox \[ 0 0 (237|496)\.", pdf) for pdf in written[0].values())
