"""Every code block of the pages runs, page by page; every command is valid."""

import functools
import importlib
import linecache
import sys
import tomllib
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
import yaml
from omegaconf import OmegaConf
from pages import NAMES, PAGES, REPOSITORY, Block, blocks, commands

import cqbjax
from benchmarks import command
from cqbjax.arena.request import parse_words
from cqbjax.cli import (
    _compose,
    _instantiate,
    aggregate,
    log,
    report,
    stored,
)
from cqbjax.core import backend
from cqbjax.engine import memory
from cqbjax.experiments import grid, study_types
from cqbjax.experiments.configs import CONF
from reproduction import report as of_paper

EXTRAS = set(tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"][
    "optional-dependencies"
])  # fmt: skip
HEADS = REPOSITORY / "docs" / "notebook" / "projection.md"
SEEDS = 2  # each draws an instance where a command is checked alone


def pages_with(*languages):
    """Return the pages that hold a block of these languages, as parameters of a test."""
    held = [any(block.language in languages for block in blocks(page)) for page in PAGES]
    return pytest.mark.parametrize(
        "page",
        [page for page, there in zip(PAGES, held, strict=True) if there],
        ids=[name for name, there in zip(NAMES, held, strict=True) if there],
    )


@pytest.fixture
def empty_folder(monkeypatch, tmp_path):
    """An empty current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(backend, "configure", lambda *_: None)  # too late in this process
    with mpl.rc_context({"backend": "agg"}):
        yield tmp_path


@pytest.fixture
def few_seeds(monkeypatch):
    """Limit each sweep to two seeds, because further seeds only add time."""

    run = cqbjax.sweep

    def sweep(*arguments, num_seeds, **more):
        return run(*arguments, num_seeds=min(num_seeds, SEEDS), **more)

    monkeypatch.setattr(cqbjax, "sweep", sweep)
    # The minimum batch must not add seeds either.
    monkeypatch.setattr(memory, "CPU_NARROW", 4 * SEEDS)


@pytest.mark.slow
@pages_with("python")
def test_code_blocks_of_a_page_run_in_order(page, empty_folder, few_seeds, monkeypatch, request):
    names = {"__name__": "__main__"}
    if page == HEADS:
        names |= heads_page(request.getfixturevalue("shared_data"), empty_folder, monkeypatch)
    save_files(page, empty_folder)
    for block in blocks(page):
        if block.language == "python" and not block.file:
            execute(block, names)
        assert ":" not in block.note, f"{block.page.name}, line {block.line}: run as it is printed"
        if block.note == "run":
            for number, call in enumerate(commands(block, empty_folder / f"stubs{block.line}")):
                assert number == 0, "mark blocks of one command"
                run_in_process(call, monkeypatch)


def heads_page(shared_data, folder, monkeypatch):
    """Return the variables that the page of the contrastive head assumes, for random prompts."""
    import jax

    from cqbjax.offline import contrastive, projection

    (folder / "data").symlink_to(shared_data)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    draw = np.random.default_rng(0)
    available = np.ones((2, 30), bool)
    vectors = draw.normal(size=(30, 384)).astype("float32")
    there = {
        "jax": jax, "keys": jax.random.split(jax.random.key(0), 2), "path": folder / "head.npz",
        "embeddings": vectors, "utilities": draw.normal(size=(30, 3)), "available": available,
        "ContrastiveConfig": contrastive.ContrastiveConfig,
    }  # fmt: skip
    return there | vars(projection)


def save_files(page, folder):
    """Save the files that a page asks the reader to save."""
    for block in blocks(page):
        if block.file:
            file = folder / block.file
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.text)


def execute(block: Block, names):
    """Run a block so that a traceback shows the page's own lines."""
    at = f"{block.page.name}:{block.line}"
    linecache.cache[at] = (len(block.text), None, block.text.splitlines(keepends=True), at)
    exec(compile(block.text, at, "exec"), names)


def run_in_process(call, monkeypatch):
    """Run a command in this process, a study with few seeds."""
    name, words = script(call)
    words = [*words, f"num_seeds={SEEDS}"] if name == "run" else words
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *words])
    importlib.import_module(f"cqbjax.cli.{name}").main()


def script(call):
    """Return the name and arguments of a call of a cqbjax command; None for other programs."""
    program, *words = call
    if program == "cqbjax":
        return words[0], words[1:]
    if program.startswith("python") and words and words[0].endswith(".py"):
        file = REPOSITORY / "scripts" / words[0].rpartition("scripts/")[2]
        assert file.is_file(), f"{words[0]} is no script"
        return file.name if file.name in CHECKS else file.stem, words[1:]
    return None, words


def check_module(words):
    """Check the arguments of a module of the checkout that a page runs by `python -m`."""
    with open(REPOSITORY / f"{words[1].replace('.', '/')}.py") as file:
        assert "__main__" in file.read()
    arguments = getattr(importlib.import_module(words[1]), "ARGUMENTS", None)
    if arguments is not None:
        arguments.parse_args(words[2:])


@pytest.mark.slow
@pages_with("bash", "")
def test_every_command_of_a_page_is_valid(page, tmp_path, monkeypatch):
    save_files(page, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    for number, block in enumerate(blocks(page)):
        if block.language == "bash" or (not block.language and "python scripts/" in block.text):
            calls = commands(block, tmp_path / str(number))
            assert calls, f"{page.name}, line {block.line}: no command that is known"
            for call in calls:
                check(call)


def check(call):
    """Raise an error for a call that would fail, without running it."""
    name, words = script(call)
    if name is not None:
        assert name in CHECKS, f"{name} is no command"
        check_command(name, tuple(words), Path.cwd() if Path("conf").is_dir() else None)
    elif call[0] == "pip" or words[:2] == ["-m", "pip"]:
        check_pip(words)
    elif words[0] == "-m" and words[1].startswith(("tests.", "reproduction.")):
        check_module(words)
    else:
        assert call[0] in ("pytest", "sphinx-build") or words[:2] in (
            ["-m", "venv"],
            ["-m", "pytest"],
        )


@functools.cache
def check_command(name, words, own):
    """Check the arguments of a command once for all pages; `own` is the current folder."""
    del own
    CHECKS[name](list(words))


def check_pip(words):
    """Check that every extra and every file exists."""
    for word in words:
        if word.startswith((".[", "cqbjax[")):
            assert set(word.partition("[")[2].removesuffix("]").split(",")) <= EXTRAS, word
        if word.endswith(".txt"):
            assert (REPOSITORY / word).is_file(), word


def check_study(words):
    """Compose a study, or the first and last point of a sweep, and check it as a run would."""
    many = "-m" in words
    arguments = [word for word in words if not word.startswith("-") and word != "job"]
    with _compose.initialize_hydra():
        jobs = _compose.combine_words(arguments) if many else [arguments]
        composed = _compose.compose_jobs([jobs[0], jobs[-1]][: len(jobs)])
    for job in composed:
        own = [word for word in job.words if not word.startswith("hydra")]
        # Each seed draws an instance to check.
        config = job.config.with_values({"num_seeds": min(job.config.num_seeds, SEEDS)})
        _compose.check_words(own, [config])
        if config.kind._target_.endswith(".LogReplay"):
            [*map(_instantiate.make, config.policy.values())]
        elif "dataset" in config.source:
            for point in grid.compose(config)[:1]:
                [*map(_instantiate.make, point.config.policy.values())]
        else:
            study_types.prepare_points(config, _instantiate.make, job.swept, {})


def check_preparing(words):
    """Check the keys of `prepare_data`."""
    there = OmegaConf.load(CONF / "prepare" / "config.yaml")
    OmegaConf.set_struct(there, True)
    for word in words:
        key, _, value = word.partition("=")
        OmegaConf.update(there, key, yaml.safe_load(value), merge=True)


CHECKS = {"run": check_study} | {
    "prepare_data": check_preparing,
    "aggregate": aggregate.ARGUMENTS.parse_args,
    "arena": parse_words,
    "log": lambda words: log.parse_keys(words[0], log.ARGUMENTS.parse_args(words).words),
    "bench": command.ARGUMENTS.parse_args,
    "report": report.ARGUMENTS.parse_args,
    "report.py": of_paper.ARGUMENTS.parse_args,  # does more than the package's
    "stored": stored.ARGUMENTS.parse_args,
}


def test_yaml_of_the_pages_is_yaml():
    yaml_blocks = [block for page in PAGES for block in blocks(page) if block.language == "yaml"]
    assert yaml_blocks and all(yaml.safe_load(block.text) for block in yaml_blocks)


def test_code_blocks_are_in_tested_languages():
    for page in PAGES:
        for block in blocks(page):
            where = f"{page.name}, line {block.line}"
            assert block.language in ("python", "bash", "yaml", ""), where
            if not block.language:
                assert not block.text.startswith(("import ", "from ", "pip ")), where


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    [
        "python scripts/run.py experiment=nothing",
        "python scripts/run.py nokey=1",
        "python scripts/run.py -m alpha_scale=0.1,0.3 nokey=1",
        "python scripts/run.py policy.acqb.nokey=1",
        "python scripts/run.py experiment=routerbench num_servers=3",
        "python scripts/run.py slackness=0.9",
        "python scripts/prepare_data.py nokey=1",
        "python scripts/aggregate.py results --nokey",
        "python scripts/rnu.py experiment=synthetic",
        "cqbjax rnu",
        "cqbjax report --missing smoke",
        "cqbjax arena seeds=many policy=acqb",
        "pip install '.[nothing]'",
        "rm -r results",
    ],
)
def test_an_invalid_command_fails(line, tmp_path):
    block = Block(REPOSITORY / "README.md", 1, "bash", "", line, "")
    with pytest.raises((Exception, SystemExit)):  # noqa: B017, PT011  of many libraries
        calls = commands(block, tmp_path)
        assert calls
        for call in calls:
            check(call)
