"""The console command, the thin scripts over the same mains, and how each of them refuses."""

import importlib
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time

import pytest
from composing import CONF, REPOSITORY, compose_config, refusal_of
from tiers import cases

import cqbjax
from cqbjax import cli
from cqbjax.cli import __main__ as console
from cqbjax.cli import _command, _compose, _help
from cqbjax.cli._command import report_errors
from cqbjax.experiments import validation
from reproduction.report import quote

# The benchmarks and the paper's reproduction stand beside the package.
BESIDE = {"bench": "benchmarks.command", "report": "reproduction.report", "run": "reproduction.run"}
SCRIPTS = sorted(
    path.stem for path in (REPOSITORY / "scripts").glob("*.py") if path.stem != "bench"
)


def test_commands_have_a_script_and_a_line_in_the_list(monkeypatch, capsys):
    modules = (REPOSITORY / "cqbjax" / "cli").glob("[!_]*.py")
    assert sorted(console.COMMANDS) == SCRIPTS == sorted(path.stem for path in modules)
    monkeypatch.setattr(sys, "argv", ["cqbjax"])
    console.main()
    listed = capsys.readouterr().out
    for name, what in console.COMMANDS.items():
        assert f"  {name:<16} {what}\n" in listed
        module = BESIDE.get(name, f"cqbjax.cli.{name}")
        assert callable(importlib.import_module(module).main)
        text = (REPOSITORY / "scripts" / f"{name}.py").read_text()
        assert re.search(rf"^from {re.escape(module)} import main\b", text, re.MULTILINE)
        assert len(text.splitlines()) == (12 if name in BESIDE else 6)


def test_unknown_commands_are_rejected_with_a_suggestion(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["cqbjax", "rnu", "experiment=synthetic"])
    with pytest.raises(SystemExit) as stopped:
        console.main()
    error_text = capsys.readouterr().err
    assert stopped.value.code == 2
    assert error_text == "error: rnu is no command: did you mean run?\n"


@pytest.fixture
def console_output(monkeypatch, capsys):
    """Return a function that returns what `cqbjax WORDS` prints, called in this process."""

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["cqbjax", *words])
        try:
            console.main()
        except SystemExit as stopped:
            assert not stopped.code, stopped
        return capsys.readouterr().out

    return call


def test_python_m_cqbjax_runs_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "cqbjax", "--version"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"cqbjax {cqbjax.__version__}\n"


def test_help_and_version_accept_every_spelling(console_output):
    assert console_output("--version") == f"cqbjax {cqbjax.__version__}\n"
    assert console_output("help") == console_output() == console_output("-h")
    assert console_output("help", "prepare-data") == console_output("prepare_data", "--help")


def test_help_of_run_fits_a_screen_and_names_all_keys_and_groups(console_output):
    text = console_output("run", "-h")
    lines = text.splitlines()
    assert len(lines) <= 30 and max(map(len, lines[:-1])) <= 79
    assert sum(line.startswith("  cqbjax run ") for line in lines) == 5
    for line in lines:
        if line.startswith("  cqbjax run "):
            words = line.split("  ")[1].split()[2:]
            compose_config(*(one for one in words if "=" in one and words[0] != "-m"))
    shown = {*re.findall(r"\w+", text)}
    settings = (CONF / "config.yaml").read_text().split("\nhydra:")[0]
    assert {*re.findall(r"^(\w+):", settings, re.MULTILINE)} - {"defaults"} <= shown
    assert {*re.findall(r"^  - (\w+): .*#", settings, re.MULTILINE)} <= shown
    text = _help.format_help(CONF / "prepare")
    settings = (CONF / "prepare" / "config.yaml").read_text().split("\nhydra:")[0]
    for key in {*re.findall(r"^(?:  )?(\w+):", settings, re.MULTILINE)} - {"defaults"}:
        assert re.search(rf"^ +{key}\b", text, re.MULTILINE)


@pytest.mark.parametrize("words", cases(["-h", "run --cfg job"], ["-h"]))
def test_closed_output_pipes_cause_no_traceback(words):
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "cqbjax", *words.split()],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    process.stdout.close()
    assert process.stderr.read() == "" and process.wait(60) == cli.BROKEN_PIPE


SIMILAR = {
    "num_sed=3": "num_sed is no key: did you mean num_seeds or ",
    "experiment=synthetc": "experiment synthetc is unknown: did you mean synthetic or ",
    "policy=[knn_fallbck]": "policy knn_fallbck is unknown: did you mean knn_fallback or ",
    "policy.acqb.c_1=3": "policy.acqb.c_1 is no key of policy.acqb: did you mean c1?",
    "policy.optimal.c1=3": "policy.optimal.c1 is no key of policy.optimal; choose from an empty",
}


@pytest.mark.parametrize("word", cases(SIMILAR, ["num_sed=3"]))
def test_misspelled_names_get_suggestions(word):
    assert refusal_of([word]).startswith(f"error: {SIMILAR[word]}")


COMMANDS = ("run", "prepare_data")


@pytest.mark.parametrize("name", cases(COMMANDS, ["run"]))
def test_unknown_keys_are_rejected_by_every_hydra_command(name):
    error_text = refusal_of(["nokey=1"], name)
    assert error_text.startswith("error: nokey is no key; choose from ")
    assert ("batch_size" if name == "prepare_data" else "arrival_rate") in error_text
    assert len(error_text.splitlines()) == 1


WRONG_INPUT = [
    ("prepare_data", [], "error: dataset=NAME is missing"),
    ("prepare_data", ["dataset=none"], "error: "),
    ("prepare_data", ["dataset=compact", "data_dir=3"], "error: data_dir=3 must be a folder"),
    ("prepare_data", ["dataset=compact", "data_dir=null"], "error: data_dir=None must be a f"),
    (
        "run",
        ["kind=sensitivity", "kind.beta=[1]"],
        "error: kind.beta is no key of kind; choose from M, alpha",
    ),
    ("run", ["kind=sensitivity", "c1=fast"], "error: c1=fast must be a number"),
    ("run", ["experiment=x"], "error: experiment x is unknown; choose from ablation"),
    ("report", ["nowhere"], "error: nowhere has no folder data/ with results: give the"),
    ("report", [".", "mine"], "error: . has no folder data/ with results: give the results_"),
    (
        "aggregate",
        ["data/x", "--over", "K", "K"],
        "error: --over K K must name nothing",
    ),
    (
        "aggregate",
        ["data/x", "--over", "K", "c1", "dim"],
        "error: --over K c1 dim must name",
    ),
    ("aggregate", ["results/data/x", "--rounds", "3", "3"], "error: --rounds 3 3 must name"),
    ("prepare_data", ["dataset=sprout", "progress=no"], "error: progress=no must be true or"),
    ("prepare_data", ["dataset=sprout", "batch_size=0"], "error: batch_size=0 must be a whole"),
    ("prepare_data", ["~batch_size"], "error: ~batch_size: batch_size cannot be left out"),
    ("stored", [], "error: the following arguments are required: folder; --help lists"),
    ("run", ["-m", "tries=1,100"], "error: tries is read by nothing here, but by best_llm"),
    ("run", ["policy=[linucb]", "linucb_alpha=-1"], "error: linucb_alpha=-1 must be a number in"),
    ("run", ["~name"], "error: ~name: name cannot be left out"),
    ("run", ["~horizon=1000"], "error: ~horizon=1000: horizon cannot be left out"),
    ("run", ["policy=null"], "error: policy=null must choose from acqb, "),
    ("aggregate", ["here", "--round"], "error: argument --rounds: expected at least one"),
    ("aggregate", ["results"], "error: results is not results/data/NAME: name one, or"),
    ("aggregate", ["results/data/.."], "error: results/data/.. is not results/data/NAME"),
]
# Of the commands that Hydra composes, one word of each that is refused in a way of its own.
QUICK = (
    "error: dataset=NAME is missing", "error: batch_size=0 must be a whole",
    "error: ~horizon=1000: horizon cannot be left out",
    "error: policy=null must choose from acqb, ",
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "words", "error_text"),
    [
        pytest.param(*one, marks=[pytest.mark.slow] * (one[0] in COMMANDS and one[2] not in QUICK))
        for one in WRONG_INPUT
    ],
)
def test_invalid_input_is_rejected_in_one_sentence_by_every_command(
    name, words, error_text, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    message = refusal_of(words, name)
    assert message.startswith(error_text) and len(message.splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["", "/abs", "a/b", "a\\b", ".hidden", 3, ["a", "b"], " a", None])
def test_names_must_be_valid_file_names(name):
    with pytest.raises(ValueError, match="name=.* must be a word that can name a file"):
        validation.validate_name(name)


NAMES = ("../escape", "''", "/abs", "a/b", "a\\\\b", ".hidden", "3", "[a,b]")
# One command reads them all; of the others it is seen that they ask.
NAMED = [*(("run", name) for name in NAMES), *((command, "../escape") for command in COMMANDS[1:])]


@pytest.mark.slow
@pytest.mark.parametrize("named", NAMED, ids="-".join)
def test_names_with_path_separators_are_rejected(named, tmp_path, monkeypatch):
    command, name = named
    monkeypatch.chdir(tmp_path)
    words = ["dataset=compact"] if command == "prepare_data" else []
    error_text = refusal_of([f"name={name}", *words], command)
    assert (
        error_text.startswith("error: name=")
        and "must be a word that can name a file" in error_text
    )
    assert not list(tmp_path.iterdir())


def test_unexpected_errors_and_debug_mode_show_tracebacks(monkeypatch):
    with pytest.raises(ZeroDivisionError), report_errors():
        print(1 / 0)
    monkeypatch.setenv("CQBJAX_TRACEBACK", "1")
    with pytest.raises(ValueError, match="as it is"), report_errors():
        raise ValueError("as it is")


def test_invalid_yaml_of_the_user_is_reported_with_file_and_line(tmp_path, monkeypatch):
    own = tmp_path / "conf" / "policy" / "mine.yaml"
    own.parent.mkdir(parents=True)
    own.write_text("mine:\n  epsilon: [0.1\n")
    monkeypatch.chdir(tmp_path)
    error_text = refusal_of(["policy=[mine]"])
    assert error_text.startswith(f"error: {own}, line 3: ") and len(error_text.splitlines()) == 1


@pytest.mark.slow
def test_user_defined_choices_are_found_and_must_not_shadow_shipped_ones(tmp_path, monkeypatch):
    own = tmp_path / "conf" / "policy" / "mine.yaml"
    own.parent.mkdir(parents=True)
    own.write_text("mine:\n  _target_: nowhere.Mine\n")
    monkeypatch.chdir(tmp_path)
    error_text = refusal_of(["policy=[mine]"])
    assert error_text.startswith("error: nowhere.Mine cannot be made: Error loading 'nowhere.Mine'")
    error_text = refusal_of(["policy=[nobody]"])
    assert error_text.startswith("error: policy nobody is unknown; choose from acqb, ")
    assert ", mine, mlp, " in error_text
    taken = own.with_name("acqb.yaml")
    own.rename(taken)
    error_text = refusal_of(["policy=[acqb]"])
    assert error_text == f"error: {taken} has the name of a file of cqbjax: give it another"


# Folders of a user's `conf/` that have the names of keys.
KEYS = ("name", "K", "alpha_scale", "source.success", "data_dir", "dataset", "source")


@pytest.mark.slow
def test_folders_in_the_users_conf_do_not_change_the_meaning_of_keys(tmp_path, monkeypatch):
    for key in KEYS:
        (tmp_path / "conf" / key).mkdir(parents=True)
        (tmp_path / "conf" / key / "mine.yaml").write_text("a: 1\n")
    # Hidden by no check: what another project's folder has is none of this command's.
    (tmp_path / "conf" / "source" / "compact.yaml").write_text("a: 1\n")
    monkeypatch.chdir(tmp_path)
    error_text = refusal_of(["dataset=compact", "source=no.csv"], "prepare_data")
    assert error_text == "error: no.csv: no such file or folder."
    (tmp_path / "conf" / "source" / "compact.yaml").unlink()
    words = ("name=mine", "K=2", "alpha_scale=0.5")
    config = compose_config(*words, "source=coin", "source.success=[0.5]", "data_dir=elsewhere")
    assert (config.name, config.K, config.alpha_scale) == ("mine", 2, 0.5)
    assert (config.data_dir, config.source.success) == ("elsewhere", [0.5])
    assert refusal_of(["K=mine", "name=mine"]) == "error: K=mine must be a whole number"
    # What the package has as a group, the folder adds to.
    assert compose_config("source=mine").source == {"a": 1}


ODD_NAMES = (
    "a,b=c", "a b", "ünï", "it's", "a\\", "a\\'b", "${x}", "[x]", "{a:b}", "-d", "3", "null", "$a$",
    "# x", 'q"q',
)  # fmt: skip


def test_folders_with_unusual_names_can_be_quoted():
    for name in ODD_NAMES:
        assert compose_config(quote("results_dir", name)).results_dir == name


def test_unusable_files_are_reported_with_the_key_of_their_folder(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    for folder, key in ((tmp_path / "file", "data_dir="), (tmp_path / "other", "")):
        folders = {"cache_dir": "None", "data_dir": str(folder)}
        with pytest.raises(SystemExit), report_errors(folders):
            (tmp_path / "file" / "x.json").read_text()
        error_text = capsys.readouterr().err
        assert error_text == f"error: {key}{tmp_path}/file/x.json: Not a directory\n"


@pytest.mark.parametrize("name", ["run", "report"])
def test_deleted_current_folder_is_reported(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gone").mkdir()
    os.chdir("gone")
    (tmp_path / "gone").rmdir()
    assert (
        refusal_of([], name) == "error: the current folder does not exist any more: go to another"
    )


def test_characters_that_hydra_rejects_must_be_quoted():
    error_text = refusal_of(["name=ü"])
    assert error_text == "error: name=ü must have its value in quotes of its own: \"name='ü'\""
    assert compose_config("name='ü'").name == "ü"


def test_configuration_files_that_are_not_utf8_are_reported(tmp_path, monkeypatch):
    own = tmp_path / "conf" / "policy" / "mine.yaml"
    own.parent.mkdir(parents=True)
    own.write_bytes(bytes(range(256)))
    monkeypatch.chdir(tmp_path)
    assert refusal_of(["policy=[mine]"]) == f"error: {own} is no text in UTF-8"


RAISING = """
from cqbjax.core.pytree import pytree


class PlainClass:
    pass


class RaisingConstructor:
    def __init__(self):
        raise RuntimeError("no luck\\ntwice")


@pytree
class NestedClasses:

    def init(self, problem, contexts):
        raise KeyError("lost")

    def select(self, key, state, observation):
        return None

    def update(self, state, observation, action, feedback):
        return state
"""


OF_ONES_OWN = [
    ("PlainClass", "policy mine: PlainClass must be registered as a pytree: decorate it with"),
    ("RaisingConstructor", "raising.RaisingConstructor cannot be made: no luck twice"),
    (
        "NestedClasses",
        "policy mine: NestedClasses.init raises KeyError, in line 18 of raising.py: 'lost'",
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "error_text"), OF_ONES_OWN)
def test_errors_in_user_defined_code_are_reported_in_one_sentence(
    name, error_text, tmp_path, monkeypatch
):
    own = tmp_path / "conf" / "policy" / "mine.yaml"
    own.parent.mkdir(parents=True)
    own.write_text(f"mine:\n  _target_: raising.{name}\n")
    (tmp_path / "raising.py").write_text(RAISING)
    monkeypatch.chdir(tmp_path)
    assert refusal_of(["policy=[mine]", "num_seeds=2", "horizon=9"]).startswith(
        f"error: {error_text}"
    )


@pytest.mark.slow
def test_user_defined_routers_combine_with_every_retry_rule_and_schedule(tmp_path, monkeypatch):
    own = tmp_path / "conf" / "router" / "ours.yaml"
    own.parent.mkdir(parents=True)
    own.write_text("_target_: nowhere.Ours\n")
    monkeypatch.chdir(tmp_path)
    for label in ("ours", "ours_fallback_least_served", "ours_priority"):
        assert "nowhere.Ours" in refusal_of([f"policy=[{label}]"])
    error_text = refusal_of(["policy=[ours_prioriti]"])
    assert error_text.startswith(
        "error: policy ours_prioriti is unknown: did you mean ours_priority or "
    )
    assert ", ours, " in refusal_of(["policy=[x]"])


def test_checkout_adds_the_configurations_of_reproduction(tmp_path, monkeypatch):
    beside = REPOSITORY / "reproduction" / "conf"
    assert CONF == _compose.CONF and [CONF, beside] == _compose.SHIPPED
    for folder in (REPOSITORY, beside.parent):
        monkeypatch.chdir(folder)
        assert _compose.find_user_folder() is None
    monkeypatch.chdir(tmp_path)
    own = tmp_path / "conf" / "kind" / "slopes.yaml"
    own.parent.mkdir(parents=True)
    own.write_text("_target_: nowhere.Mine\n")
    error_text = refusal_of(["horizon=abc"])
    assert error_text == f"error: {own} has the name of a file of cqbjax: give it another"


# What a command must not wait for before it can show a configuration, refuse a word or list.
HEAVY = ("jax", "numpy", "xarray", "pandas", "scipy", "sklearn", "matplotlib", "polars")


SHOWN = {
    "cqbjax.cli": 0, "cqbjax.cli run experiment=routerbench --cfg job": 0,
    "scripts/run.py horizon=abc": 2, "cqbjax.cli run -m nokey=1,2": 2,
    "cqbjax.cli run K=[1,2] arrival_rate=fast": 2, "cqbjax.cli run c1=[] name=t": 2,
    "cqbjax.cli run explore_rounds=abc policy=[cqb_eps]": 2,
}  # fmt: skip


@pytest.mark.parametrize("words", cases(SHOWN, list(SHOWN)[1:2]))
def test_composing_or_rejecting_a_configuration_imports_no_heavy_library(words):
    code = (
        "import runpy, sys\n"
        f"sys.argv = {words.split()!r}\n"
        "status = 0\n"
        "try:\n"
        "    run = runpy.run_path if sys.argv[0].endswith('.py') else runpy.run_module\n"
        "    run(sys.argv[0], run_name='__main__')\n"
        "except SystemExit as stopped:\n"
        "    status = stopped.code\n"
        f"assert status == {SHOWN[words]}, status\n"
        f"assert not set({HEAVY!r}) & set(sys.modules), sorted(set({HEAVY!r}) & set(sys.modules))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=REPOSITORY, timeout=60
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_synthetic_studies_import_heavy_libraries_late():
    late = ("sklearn", "matplotlib", "optax", "scipy.stats", "huggingface_hub")
    code = (
        "import sys\n"
        "import cqbjax.cli.run, cqbjax.policies, cqbjax.sources, cqbjax.experiments.study\n"
        f"assert not set({late!r}) & set(sys.modules), sorted(set({late!r}) & set(sys.modules))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=REPOSITORY, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_errors_caused_by_ctrl_c_are_not_reported(monkeypatch, capsys):
    """A compiler that is interrupted may raise one of its own."""
    monkeypatch.setattr(_command, "_interrupted", threading.Event())
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit, match="130"), report_errors():
        with pytest.raises(KeyboardInterrupt):
            _command._interrupt(signal.SIGINT, None)
        raise RuntimeError("incompatible function arguments")
    assert capsys.readouterr().err.startswith("stopped; ")


@pytest.mark.slow
def test_ctrl_c_leaves_stored_results_and_prints_how_to_resume(tmp_path):
    """To the whole group, as a terminal sends it, once the first shard is stored."""
    words = ["-m", "name=grid", "policy=[random]", "num_seeds=2", "horizon=20000", "shard_runs=2"]
    words += ["arrival_rate=" + ",".join(f"0.{rate}" for rate in range(100, 200))]
    command = [sys.executable, str(REPOSITORY / "scripts" / "run.py"), *words]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=tmp_path,
        start_new_session=True,
    )  # fmt: skip
    while process.poll() is None and not list(tmp_path.rglob("*.nc")):
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    lines = process.communicate(timeout=120)[0].splitlines()
    assert process.returncode == 130
    stopped = next(number for number, line in enumerate(lines) if line.startswith("stopped; "))
    assert lines[stopped] == "stopped; what is finished is stored"
    assert lines[stopped + 1 :] == [f"go on with: python {shlex.join(command[1:])}"]
    assert not any("Traceback" in line or "KeyboardInterrupt" in line for line in lines)
