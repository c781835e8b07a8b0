"""The report's command: missing studies are listed and run, extracts replace arrays."""

import shutil
import subprocess
import sys

import pytest
import yaml
from composing import EXPERIMENTS, compose_config, refusal_of, run_command
from fabricated import fabricate, save_point

from cqbjax.experiments import configs
from cqbjax.experiments.display import make_console
from reproduction import extracts, report
from reproduction.paper import catalogue

LABELS = ("optimal", "acqb", "cqb_eps", "random")


def store_point(root, name="synthetic", horizon=100):
    """Store the arrays of a study, as a run of it would."""
    config = compose_config(
        f"experiment={name}", f"horizon={horizon}", "K=1", f"results_dir={root}"
    )
    point = fabricate(LABELS, (0.7,), 4, horizon, experiment=name, parameters="disjoint")
    manifest = {"point": "K=1", "varied": {"K": 1}, "experiment": name}
    text = yaml.safe_dump(configs.to_plain(config))
    save_point(point, manifest, text, root / "data" / name / "K=1.nc")


def parse_arguments(root, *names, **keys):
    words = [word for key, value in keys.items() for word in (f"--{key.replace('_', '-')}", value)]
    return report.ARGUMENTS.parse_args([str(root), *names, *words])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--missing", "huge"], "error: argument --missing: invalid choice: 'huge' (choose from"),
        (["--seeds", "3"], "error: unrecognized arguments: --seeds"),
        (["--dry-run"], "error: --dry-run goes with --missing: add it, or leave it out"),
        (["results", "none", "--missing", "cpu"], "error: none is no study of the report; choose"),
        (
            ["nowhere"],
            "error: nowhere has no folder data/ with results: give the results_dir of a study",
        ),
    ],
)
def test_invalid_report_arguments_are_rejected_in_one_sentence(
    words, expected, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    message = refusal_of(words, "reproduction.report")
    assert message.startswith(expected) and len(message.splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_report_page_is_rebuilt_from_extracts(tmp_path):
    store_point(tmp_path)
    report.report(parse_arguments(tmp_path))
    page, extracted = tmp_path / "report" / "index.html", tmp_path / "report" / "extracts"
    assert {path.name for path in extracted.iterdir()} == {"synthetic"}
    written = {path.name for path in (tmp_path / "tables").iterdir()}
    assert {"paper.csv", "paper_counts.md", "claims.csv", "synthetic.csv"} <= written
    first = (tmp_path / "tables" / "claims.csv").read_text()
    shutil.rmtree(tmp_path / "data")
    page.unlink()
    report.report(parse_arguments(tmp_path))
    assert page.is_file() and (tmp_path / "tables" / "claims.csv").read_text() == first


@pytest.mark.slow
def test_package_report_omits_the_papers_numbers(tmp_path):
    store_point(tmp_path, horizon=1000)
    done = run_command("report", tmp_path)
    assert done.returncode == 0, done.stderr
    table = (tmp_path / "tables" / "synthetic.csv").read_text()
    assert (tmp_path / "figures" / "synthetic.png").is_file()
    assert {path.name for path in tmp_path.iterdir()} == {"data", "tables", "figures"}
    assert {path.stem for path in (tmp_path / "tables").iterdir()} == {"synthetic"}
    report.report(parse_arguments(tmp_path))
    whole = (tmp_path / "tables" / "synthetic.csv").read_text()
    assert "paper_" in whole.splitlines()[0] and "paper_" not in table


@pytest.mark.slow
@pytest.mark.parametrize("command", ["run", "reproduction.run"])
def test_only_checkout_runs_show_the_papers_numbers(command, tmp_path):
    words = ("K=1", "num_seeds=2", "horizon=500", "policy=[random]", f"results_dir={tmp_path}")
    done = run_command(command, "experiment=synthetic", *words)
    assert done.returncode == 0, done.stderr
    header = (tmp_path / "tables" / "synthetic.csv").read_text().splitlines()[0]
    assert ("paper_throughput" in header) == (command == "reproduction.run")


@pytest.mark.slow
def test_other_experiments_get_tables_but_no_report_page(tmp_path):
    store_point(tmp_path, "ablation_phase_rule")
    report.report(parse_arguments(tmp_path))
    assert (tmp_path / "tables" / "ablation_phase_rule.csv").is_file()
    assert not (tmp_path / "report").exists()


@pytest.mark.slow
def test_damaged_studies_are_named_and_skipped(tmp_path, capsys):
    for name in ("ablation_phase_rule", "ablation_servers", "ablation_load"):
        store_point(tmp_path, name)
    torn = tmp_path / "data" / "ablation_servers" / "K=1.nc"
    torn.write_bytes(torn.read_bytes()[:-9])
    empty = tmp_path / "data" / "ablation_load"
    for path in empty.iterdir():
        path.unlink()
    with pytest.raises(SystemExit) as stopped:
        report.report(parse_arguments(tmp_path))
    assert stopped.value.code == report.SOME_LEFT_OUT
    printed = capsys.readouterr().err.splitlines()
    assert printed[0].startswith(f"ablation_load left out: no result under {empty}")
    assert (
        printed[1].startswith(f"ablation_servers left out: {torn} is damaged") and len(printed) == 2
    )
    tables = tmp_path / "tables"
    assert (tables / "ablation_phase_rule.csv").is_file()
    assert not (tables / "ablation_servers.csv").exists()


@pytest.mark.slow
def test_missing_page_libraries_are_reported_and_tables_written(tmp_path, monkeypatch, capsys):
    store_point(tmp_path)
    monkeypatch.setattr(report, "LIBRARIES", ("no_such_library",))
    with pytest.raises(SystemExit) as stopped:
        report.report(parse_arguments(tmp_path))
    assert stopped.value.code == report.SOME_LEFT_OUT
    printed = capsys.readouterr().err
    assert printed == "no page: no_such_library not installed; pip install 'cqbjax[report]'\n"
    assert (tmp_path / "tables" / "claims.csv").is_file()
    assert not (tmp_path / "report" / "index.html").exists()


@pytest.mark.slow
def test_studies_with_arrays_or_an_extract_are_not_missing(tmp_path):
    names = [one.name for one in catalogue.load_studies()]
    assert [one.name for one in report.find_missing(tmp_path, [])] == names
    store_point(tmp_path, "synthetic")
    (tmp_path / "report" / "extracts" / "wildchat").mkdir(parents=True)
    left = [one.name for one in report.find_missing(tmp_path, [])]
    assert left == [name for name in names if name not in ("synthetic", "wildchat")]
    assert [one.name for one in report.find_missing(tmp_path, ["sprout"])] == ["sprout"]


def test_missing_studies_print_their_time_and_failing_ones_are_skipped(
    tmp_path, monkeypatch, capsys
):
    calls = []

    def run_fake(command, **_):
        calls.append(command)
        print("ran", command[2])
        failed = "experiment=sprout" in command
        printed = "50 of 60\nerror: sprout is not prepared\n" if failed else ""
        return subprocess.CompletedProcess(command, 2 if failed else 0, stderr=printed)

    monkeypatch.setattr(subprocess, "run", run_fake)
    words = parse_arguments(tmp_path, "synthetic", "sprout", missing="smoke", data_dir="data")
    lost = report.run_missing(words, make_console())
    assert lost == {"sprout": "sprout is not prepared"}
    printed = capsys.readouterr().out
    assert printed.index("2 studies are missing: about ") < printed.index("[1/2] synthetic")
    assert "sprout left out: sprout is not prepared" in printed
    assert calls[0][0] == sys.executable and "experiment=synthetic" in calls[0]
    assert {"num_seeds=2", "horizon=40", f"results_dir='{tmp_path}'"} <= set(calls[0])
    assert "data_dir='data'" in calls[0] and "cache_dir='data'" not in calls[0]


@pytest.mark.slow
def test_report_studies_are_experiments_that_compose():
    for one in catalogue.load_studies():
        assert one.name in EXPERIMENTS
        assert set(one.minutes) == set(report.SIZES) and set(one.sizes) <= set(one.minutes)
        for words in one.sizes.values():
            assert compose_config(f"experiment={one.name}", *words).name == one.name


@pytest.mark.slow
def test_a_missing_study_is_run_and_shown(tmp_path, monkeypatch):
    (one,) = [each for each in catalogue.load_studies() if each.name == "synthetic_scheduling"]
    # Cheap to compile: that it runs is the question here, not what.
    words = [*one.sizes["smoke"], "K=1", "policy=[optimal,random]"]
    monkeypatch.setattr(catalogue, "load_studies", lambda: [one._replace(sizes={"smoke": words})])
    report.report(parse_arguments(tmp_path, "synthetic_scheduling", missing="smoke"))
    made = extracts.read(tmp_path / "report" / "extracts" / "synthetic_scheduling")
    assert made.notes["horizon"] == 40
    assert [point["seeds"] for point in made.notes["points"]] == [2]
    assert (tmp_path / "report" / "index.html").stat().st_size > 5e5
