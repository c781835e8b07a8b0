"""The arena: its tasks, a policy that enters, one that is verified, and those that cheat."""

import shutil

import polars as pl
import pytest
import yaml
from composing import CONF, compose_config, refusal_of, run_command
from tiers import cases

from cqbjax.arena import board as boards
from cqbjax.arena.report import write_report
from cqbjax.arena.request import parse_request, parse_values
from cqbjax.arena.tasks import FIRST_SEED, list_tasks, select_tasks
from cqbjax.experiments import display, grid
from cqbjax.results import files

TASKS = [task.name for task in list_tasks()]
MINE = '''
import jax
import jax.numpy as jnp
import numpy as np

from cqbjax import sources
from cqbjax.core import rng
from cqbjax.core.pytree import pytree
from cqbjax.core.types import Action
from cqbjax.offline import TrainedRouter
from cqbjax.policies import RandomRouting
from cqbjax.policies._template import EpsilonGreedy


@pytree
class Mine(EpsilonGreedy):
    """The template."""


@pytree
class SingleAnswerPolicy(EpsilonGreedy):
    """Answers with one LLM alone."""

    def check(self, problem):
        if problem.assortment_size > 1:
            raise ValueError("SingleAnswerPolicy answers with one LLM: K must be 1")


@pytree
class SilentSingleAnswerPolicy(EpsilonGreedy):
    """Answers with one LLM alone, and does not say so."""

    def select(self, key, state, observation):
        action = super().select(key, state, observation)
        return action._replace(servers=action.servers[:1])


@pytree
class FrameReader(RandomRouting):
    """Looks through its callers for what its source has drawn."""

    def init(self, problem, contexts):
        import sys

        frame = sys._getframe()
        while "instance" not in frame.f_locals:
            frame = frame.f_back
        return frame.f_locals["instance"].workload.utilities

    def select(self, key, state, observation):
        action = RandomRouting.select(self, key, (), observation)
        best = jnp.argsort(-state[observation.queue.row[action.slot]])
        servers = jnp.sort(best[: observation.problem.assortment_size])
        return action._replace(servers=servers.astype(jnp.int32))

    def update(self, state, observation, action, feedback):
        return state


@pytree
class FrameReaderInLongRuns(FrameReader):
    """Peeks in runs that are longer than those of the checks."""

    def init(self, problem, contexts):
        if problem.horizon > 48:
            return FrameReader.init(self, problem, contexts)
        return jnp.zeros((problem.num_rows, problem.num_servers))


@pytree
class FrameReaderOutsideChecks(FrameReader):
    """Peeks unless a check calls it."""

    def init(self, problem, contexts):
        import sys

        frame, names = sys._getframe(), set()
        while frame is not None:
            if frame.f_globals["__name__"].startswith("cqbjax"):
                names |= {frame.f_code.co_name, *(k for k in frame.f_locals if k == "instance")}
            frame = frame.f_back
        if "instance" in names and not any("check" in name for name in names):
            return FrameReader.init(self, problem, contexts)
        return jnp.zeros((problem.num_rows, problem.num_servers))


@pytree
class HiddenFrameReader(FrameReader):
    """Peeks, and refuses to be looked at."""

    def check(self, problem):
        if problem.num_servers == 4:
            raise ValueError("not with four")


class LateTrainedRouter(TrainedRouter):
    """Would be trained before it runs."""

    def __init__(self):
        super().__init__(router=None)


CALLS = []


@pytree
class GlobalVariablePolicy(EpsilonGreedy):
    """Keeps a global."""

    def select(self, key, state, observation):
        CALLS.append(1)
        action = EpsilonGreedy.select(self, key, state, observation)
        return action._replace(explored=action.explored | (len(CALLS) % 2 == 0))


@pytree
class CallbackPolicy(EpsilonGreedy):
    """Keeps a global on the other side of a callback."""

    def select(self, key, state, observation):
        jax.debug.callback(lambda: CALLS.append(1))
        return EpsilonGreedy.select(self, key, state, observation)


@pytree
class ServerShownTwice(EpsilonGreedy):
    """Shows a server twice."""

    def select(self, key, state, observation):
        action = EpsilonGreedy.select(self, key, state, observation)
        return action._replace(servers=jnp.full_like(action.servers, action.servers[0]))


@pytree
class SeedRecognizer(RandomRouting):
    """Tells the seed by the contexts, and draws again what users think of the LLMs."""

    def init(self, problem, contexts):
        source = sources.Synthetic(slackness=0.03)
        if problem.dim != source.dim:
            return jnp.zeros((problem.num_rows, problem.num_servers))
        keys = jax.vmap(rng.run_key)(2_000_000 + np.arange(8))
        drawn = jax.vmap(lambda key: source.draw_workload(key, jnp.float32(0.7), problem))(keys)
        apart = jnp.abs(drawn.contexts - contexts).sum(axis=(1, 2))
        return drawn.utilities[jnp.argmin(apart)]

    def select(self, key, state, observation):
        there = jnp.where(observation.queue.arrived[:, None] > 0,
                          state[observation.queue.row], -jnp.inf)
        slot = jnp.argmax(there.max(axis=1))
        servers = jnp.argmax(there[slot])[None]
        return Action(slot.astype(jnp.int32), servers.astype(jnp.int32), jnp.bool_(False))

    def check(self, problem):
        if problem.assortment_size > 1:
            raise ValueError("SeedRecognizer plays K = 1")

    def update(self, state, observation, action, feedback):
        return state
'''
TINY = ("seeds=3", "rounds=0.01", "tuning=false")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder but for a file of policies."""
    (tmp_path / "a.b").mkdir()
    for name in ("my_policy", "my.policy", "json", "sys", "a.b/mine"):
        (tmp_path / f"{name}.py").write_text(MINE)
    for name, text in (("broken", "x = ("), ("raises", "1 / 0")):
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_arena_tasks_are_listed_with_descriptions():
    assert 12 <= len(TASKS) <= 16
    output = run_command("arena", "tasks").stdout
    for task in list_tasks():
        assert (
            f"{task.name} (version {task.version}): {task.title}\n    {task.description}" in output
        )
        assert len(task.description.split()) > 15 and task.version >= 1


def test_user_defined_tasks_run_only_on_request(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "conf" / "arena"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text("# Mine.\ndefaults: [_base]\ntitle: Mine\nversion: 2\n")
    assert [task.name for task in select_tasks([])] == TASKS
    (mine,) = select_tasks(["mine"])
    assert (mine.title, mine.version, mine.description, mine.shipped) == ("Mine", 2, "Mine.", False)
    (folder / "half.yaml").write_text("title: Half\n")
    with pytest.raises(ValueError, match=r"half.yaml: a task needs defaults, title and version"):
        select_tasks([])


@pytest.mark.slow
@pytest.mark.parametrize("name", cases(TASKS, ["paper"]))
def test_tasks_compose_to_one_grid_point_on_tuning_seeds(name):
    config = compose_config(f"arena={name}")
    (point,) = grid.compose(config)
    assert config.name == name and point.config.first_seed == 1_000_000
    assert point.config.num_seeds >= 30 and {"random", "acqb"} <= set(point.config.policy)
    reported = range(FIRST_SEED, FIRST_SEED + point.config.num_seeds)
    assert not set(grid.list_seeds(point.config)) & set(reported)
    assert "departures" not in point.config.record


@pytest.mark.parametrize("name", cases(TASKS, ["paper"]))
def test_shipped_board_matches_the_current_tasks(name):
    note, rows = boards.read_board().notes[name], boards.read_board().rows.filter(task=name)
    task, config = select_tasks([name])[0], compose_config(f"arena={name}")
    assert note["version"] == task.version, "what was raised is run again"
    assert note["horizon"] == config.horizon and note["seeds"] == config.num_seeds >= 30
    (point,) = grid.compose(config)
    assert {*rows["policy"]} == {*point.config.policy, "optimal"} == {*note["policies"], "optimal"}
    seeds = [FIRST_SEED + i for i in range(config.num_seeds)]
    assert all(one["seed"].sort().to_list() == seeds for one in rows.partition_by("policy")), (
        "each policy on every seed"
    )


def test_tuning_seeds_are_used_unless_all_seeds_run():
    for words, tuning in (
        ([], False), (["seeds=5"], True), (["seeds=5", "tuning=false"], False),
        (["tuning=true"], True), (["rounds=0.1"], False),
    ):  # fmt: skip
        request = parse_request(parse_values(["policy=acqb", *words]), board=False)
        assert request.tuning == tuning and request.folder.name == f"acqb{'_tuning' * tuning}"


def test_tasks_compare_at_least_18_policies():
    for base in ("_base", "_prompts"):
        defaults = yaml.safe_load((CONF / "arena" / f"{base}.yaml").read_text())["defaults"]
        (labels,) = (one["override /policy"] for one in defaults if "override /policy" in one)
        assert len(labels) == len(set(labels)) >= 18 and "optimal" not in labels


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["policy=my_policy.py:Nobody"], "error: policy=my_policy.py:Nobody: my_policy.py has no"),
        (
            ["policy=my.policy.py:Mine"],
            "file, folders and class must have names that Python can import",
        ),
        (["policy=a.b/mine.py:Mine"], "a.b/mine.py:Mine: file, folders and class must have names"),
        (["policy=broken.py:Mine"], "broken.py raises SyntaxError: '(' was never closed"),
        (["policy=raises.py:Mine"], "raises.py raises ZeroDivisionError: division by zero"),
        (["policy=json.py:Mine"], "Python has another module json: rename json.py"),
        (["policy=sys.py:Mine"], "Python has another module sys: rename sys.py"),
        (["policy=my_policy.py:"], "my_policy.py:: file, folders and class must have names"),
        (["policy=my_policy.py:Ü"], "file, folders and class must have names"),
        (["policy=other.py:Mine"], "other.py must be a Python file below the current folder"),
        (["tasks=paper"], "error: policy= is missing"),
        (
            ["policy=acqb", "tasks=opera"],
            "error: task opera is unknown; choose from channels, drift, ",
        ),
        (
            ["policy=acqb", "seed=3"],
            "error: seed=3 is unknown here: did you mean seeds=?",
        ),
        (["policy=acqb", "seeds=1"], "error: seeds=1 must be a whole number, at least 2"),
        (["policy=acqb", "rounds=2"], "error: rounds=2 must be a fraction of all rounds"),
        (["policy=acqb", "keep=true"], "error: keep=true is unknown here; choose from policy=,"),
        (["board", "policy=acqb"], "error: policy= is for an entry"),
        (["verify"], "error: verify takes the folder"),
        (["verify", "."], "error: . is no entry of the arena: board.json is not there"),
        (["tasks", "more"], "error: more is unknown here: leave it out"),
        (["show", "tasks=paper"], "error: tasks=paper is unknown here; choose from out="),
    ],
)
def test_invalid_arena_arguments_are_rejected_in_one_sentence(words, message, folder):
    error = refusal_of(words, "arena")
    assert message in error and len(error.splitlines()) == 1
    assert not (folder / "arena").exists()


@pytest.mark.slow
def test_entry_resumes_and_is_verified(folder):
    words = ("policy=my_policy.py:Mine", "tasks=paper,impatient", *TINY)
    done = run_command("arena", *words)
    assert done.returncode == 0, done.stderr
    assert "2 tasks, 0 of them stored; the same" in done.stdout
    place = folder / "arena" / "Mine"
    table = pl.read_csv(place / "table.csv")
    assert {*table["policy"]} == {"Mine", "optimal", "random"}
    assert {*table["task"]} == {"paper", "impatient"} and {*table["seeds"]} == {3}
    oracle = table.filter(policy="optimal")
    assert {*oracle["gap"]} == {0.0} and {*oracle["score"].drop_nulls()} <= {1.0}
    page = (place / "index.html").read_text()
    assert "Mine in the arena" in page and page.count("<img ") == 1
    seeds = boards.read_board(place).rows["seed"].unique().sort().to_list()
    assert seeds == [FIRST_SEED + i for i in range(3)]
    again = run_command("arena", *words)
    assert "2 tasks, 2 of them stored" in again.stdout and "rounds in" not in again.stderr
    fine = run_command("arena", "verify", place, "samples=2", "seed=4")
    assert fine.returncode == 0, fine.stderr
    assert fine.stdout.count("run again, the same to the last bit") == 2
    _check_edits_are_refused(place)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "policy"),
    [
        ("paper", "acqb"),
        # There `optimal` does not offer an LLM to a query twice.
        ("retries", "my_policy.py:Mine"),
        ("retries", "logistic_fallback_least_served"),
        ("once", "thompson_fallback_least_served"),
        ("paretobandit", "best_llm_fallback"),
    ],
)
def test_an_honest_entry_of_two_seeds_is_verified(task, policy, folder, request):
    words = [f"data_dir={request.getfixturevalue('shared_data')}"] if task == "once" else []
    done = run_command("arena", f"policy={policy}", f"tasks={task}", "seeds=2", "rounds=0.05",
                  "tuning=false", *words)  # fmt: skip
    assert done.returncode == 0, done.stderr
    place = folder / "arena" / policy.rpartition(":")[2]
    fine = run_command("arena", "verify", place, "samples=2", *words)
    assert fine.returncode == 0, fine.stderr
    assert f"{place.name}: run again, the same to the last bit" in fine.stdout
    assert f"{task}: num_seeds=2, and not 30: a first look, not an entry" in fine.stdout


def _check_edits_are_refused(place):
    """Refuse a table, rows and arrays that do not follow from one another."""
    table = place / "table.csv"
    original = table.read_text()
    table.write_text(original.replace("paper,Mine,1", "paper,Mine,2", 1))
    message = refusal_of(["verify", place], "arena")
    assert "table.csv does not follow from its arrays at paper,Mine,2" in message
    table.write_text(original)
    page = place / "index.html"
    original = page.read_text()
    page.write_text(original.replace("Mine in the arena", "The best policy", 1))
    message = refusal_of(["verify", place], "arena")
    assert "index.html does not follow from its arrays at <title>The best policy" in message
    page.write_text(original)
    board = boards.read_board(place)
    more = board.notes["paper"] | {"horizon": 10}
    boards.write_board(board._replace(notes=board.notes | {"paper": more}), place)
    message = refusal_of(["verify", place], "arena")
    assert "board.json has horizon=10 for task paper, and the stored results " in message
    better = board.rows.with_columns(gap=pl.when(policy="Mine").then(0.0).otherwise("gap"))
    boards.write_board(board._replace(rows=better), place)
    message = refusal_of(["verify", place], "arena")
    assert "board.parquet does not follow from its arrays" in message
    boards.write_board(board, place)
    # Arrays, rows, table and page in which one's own policy needed fewer attempts at one seed of
    # three: run again it did not.
    (file,) = (place / "data" / "paper").glob("*.nc")
    (one,) = files.read_file(file)
    own = (one.point.policy == "Mine") & (one.point.seed == FIRST_SEED + 1)
    fewer = (one.point.attempts - 0.5 * own).astype(one.point.attempts.dtype)
    better = one._replace(point=one.point.assign(attempts=fewer))
    files.write_file([better], file)
    others = board.rows.filter(pl.col("task") != "paper")
    rows = pl.concat([others, boards.tabulate_point(better.point, "paper")])
    made = board._replace(rows=rows)
    write_report(made, boards.read_board(), place, "Mine", display.make_console())
    message = refusal_of(["verify", place, "samples=9"], "arena")
    assert "task paper, policy Mine: attempts differs when it is run again" in message
    # Another scenario under the task's name.
    easier = one._replace(config=one.config.replace("slackness: 0.03", "slackness: 0.05"))
    files.write_file([easier], file)
    message = refusal_of(["verify", place], "arena")
    assert "task paper is not the arena's: it was run with slackness=0.05, and not 0.03" in message


@pytest.mark.slow
def test_unsupported_tasks_of_a_policy_are_skipped(folder):
    done = run_command(
        "arena", "policy=my_policy.py:SingleAnswerPolicy", "tasks=paper,pairs", *TINY
    )
    assert done.returncode == 3
    assert "pairs left out: SingleAnswerPolicy answers with one LLM: K must be 1" in done.stdout
    assert {*boards.read_board(folder / "arena" / "SingleAnswerPolicy").rows["task"]} == {"paper"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "LateTrainedRouter",
            "policy LateTrainedRouter cannot be checked: it is trained before it runs",
        ),
        ("SilentSingleAnswerPolicy", "at K=2 (`check` may reject other K): "),
        (
            "HiddenFrameReader",
            "policy HiddenFrameReader must play N=4, K=1, d=3, but: not with four",
        ),
        ("FrameReader", "must not see the true utilities"),
        ("GlobalVariablePolicy", "select and update must be pure"),
        ("CallbackPolicy", "must compute in JAX alone"),
        ("ServerShownTwice", "distinct"),
    ],
)
def test_cheating_policies_are_rejected_at_entry(name, message, folder):
    error = refusal_of([f"policy=my_policy.py:{name}", "tasks=paper", *TINY], "arena")
    assert message in error, error
    assert not (folder / "arena" / name).exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("FrameReaderInLongRuns", "a contestant must not see the true utilities"),
        (
            "FrameReaderOutsideChecks",
            "policy FrameReaderOutsideChecks: queue_length differs when it is run again",
        ),
    ],
)
def test_verification_detects_cheating_that_entry_checks_miss(name, message, folder):
    words = ("tasks=paper", "seeds=3", "rounds=0.05", "tuning=false")
    done = run_command("arena", f"policy=my_policy.py:{name}", *words)
    assert done.returncode == 0, done.stderr
    table = pl.read_csv(folder / "arena" / name / "table.csv")
    assert table.filter(policy=name)["score"].item() > 0.8, "it cheats"
    error = refusal_of(["verify", folder / "arena" / name, "samples=2"], "arena")
    assert message in error, error


@pytest.mark.slow
def test_verification_detects_a_policy_that_knows_the_seed(folder):
    words = ("tasks=paper", "seeds=4", "rounds=0.1", "tuning=false")
    done = run_command("arena", "policy=my_policy.py:SeedRecognizer", *words)
    assert done.returncode == 0, done.stderr
    place = folder / "arena" / "SeedRecognizer"
    gaps = dict(pl.read_csv(place / "table.csv").select("policy", "gap").iter_rows())
    assert gaps["SeedRecognizer"] == 0 < gaps["random"], "it does as well as the oracle"
    message = refusal_of(["verify", place, "samples=2"], "arena")
    assert "policy SeedRecognizer knows more than its feedback tells" in message


@pytest.mark.slow
def test_shipped_rows_are_matched_by_cache_key_or_identical_draws(folder, monkeypatch):
    board = folder / "kept"
    monkeypatch.setattr(boards, "SHIPPED", board)
    done = run_command("arena", "board", "tasks=paper", "rounds=0.01")
    assert done.returncode == 0, done.stderr
    shutil.copytree(folder / "arena" / "board", board, ignore=shutil.ignore_patterns("data"))
    page = (folder / "arena" / "board" / "index.html").read_text()
    assert "The arena" in page and page.count("<h3 id=") == 1
    read = boards.read_board(board)
    others = {*read.rows["policy"]}
    assert len(others) >= 18
    by = _enter()
    assert by.pop("Mine") == by.pop("optimal") == "run"
    assert {*by.values()} == {"key"} and {*by} == others - {"optimal"}, "random is not run again"
    # Other code has another key, but the oracle's numbers are the same.
    notes = {"paper": read.notes["paper"] | {"content": "other"}}
    boards.write_board(read._replace(notes=notes), board)
    by = _enter()
    assert by.pop("Mine") == by.pop("optimal") == by.pop("random") == "run"
    assert {*by.values()} == {"draws"} and {*by} == others - {"optimal", "random"}
    # If the oracle differs at a seed, the run is comparable with nobody.
    other = read.rows.with_columns(
        served=pl.when(policy="optimal").then(pl.col("served") + 1).otherwise("served")
    )
    boards.write_board(boards.Board(other, notes), board)
    assert {*_enter()} == {"Mine", "optimal", "random"}


def _enter():
    """Enter a policy; return how what is set beside it is known."""
    done = run_command("arena", "policy=my_policy.py:Mine", "tasks=paper", "seeds=2", "rounds=0.01",
                  "tuning=false")  # fmt: skip
    assert done.returncode == 0, done.stderr
    table = pl.read_csv("arena/Mine/table.csv")
    return dict(table.select("policy", "by").iter_rows())
