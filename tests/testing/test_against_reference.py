"""The simulator against the independent NumPy one: same draws, float64, identical whole runs."""

import dataclasses

import numpy as np
import pytest
import recorded
from recorded import Case

from cqbjax import sources
from tests import reference
from tests.reference import scenarios

# Visits of every page, or Newton steps, to the end: with K > 1 blocks are coupled and need more.
# Half of them suffice, but for `newton_cg` at K = 3, which needs more than 8.
EXACT_STEPS = {1: 6, 2: 10, 3: 16}
# Low enough that contexts of every seed used here can meet the slackness condition.
RATES = {1: 0.6, 2: 0.7, 3: 0.78}
HORIZON = 120
EXACT = ("query", "assortment", "choice", "departed", "queue_length", "explored")


def pool(dim: int = 8) -> sources.PromptPool:
    """Return a small routing table: 60 prompts in some dimensions, 5 servers, pools of 40."""
    rng = np.random.default_rng(5)
    contexts = rng.normal(size=(60, dim)) / np.sqrt(dim)
    utilities = 1.5 * rng.normal(size=(60, 5)) - 0.2
    return sources.PromptPool(contexts=contexts, utilities=utilities, pool_size=40)


def cases() -> dict[str, tuple[Case, str]]:
    """Return every case and the estimator that it runs with."""
    made = {}
    for size, rate in RATES.items():
        disjoint = sources.Synthetic(num_servers=5, dim=4)
        shared = sources.Synthetic(num_servers=4, dim=3, parameters="shared")
        made[f"disjoint-{size}"] = Case(disjoint, size, rate, HORIZON, seed=size), "running"
        if size < 3:  # of one block, three rows a round are added as two are
            made[f"shared-{size}"] = Case(shared, size, rate, HORIZON, seed=3 + size), "running"
        made[f"routing-{size}"] = Case(pool(), size, rate, HORIZON, seed=6 + size), "newton_cg"
    # Fewer dimensions are fewer steps to the end of a system, written out in the program.
    made["small-1"] = Case(pool(3), 1, RATES[1], HORIZON, seed=7), "newton_cg"
    two = scenarios.BatchPool(source=pool())
    made["batches-1"] = Case(two, 1, 0.6, HORIZON, seed=2), "newton_cg"
    made["batches-2"] = Case(two, 2, 0.7, HORIZON, seed=5), "newton_cg"
    return made


def memory_cases() -> dict[str, Case]:
    """Return cases in which verdicts are kept, prompts look alike, or each comes once."""
    once, repeated = pool(3), pool(3)
    repeated = dataclasses.replace(repeated, contexts=np.repeat(repeated.contexts[:12], 5, axis=0))
    contexts, utilities = (np.tile(one, (3, 1)) for one in (once.contexts, once.utilities))
    once = sources.PromptPool(contexts=contexts, utilities=utilities, pool_size=150, repeats=False)
    return {
        "prompt": Case(dataclasses.replace(pool(3), outcome="prompt"), 1, 0.6, HORIZON, seed=7),
        "query": Case(dataclasses.replace(once, outcome="query"), 1, 0.6, HORIZON, seed=8),
        "alike": Case(repeated, 1, 0.6, HORIZON, seed=9, recall_by="embedding"),
    }


CASES = cases()
MEMORY = memory_cases()
# What three rows a round or several arrivals change is the round and what is learnt, alike for all
# forms of ACQB: those that have code of their own are compared at K = 1 and 2 of one arrival, with
# each kind of parameters. To compile them is half of the time.
FEW = ("routing-3", "disjoint-3", "batches-1", "batches-2")
FORMS = ("acqb_ucb", *reference.RETRIES, *recorded.WINDOWED)
# Those that remember, and those that they are compared with.
REMEMBER = ("acqb_recall", "optimal", "routed", "routed_fallback_rr", "routed_recall_priority",
            "routed_cache_priority")  # fmt: skip
# The quick tier compares what is one program of ACQB, whose keys are numbers, the oracle and
# the bandits: a fault in the round, in a policy or in what it learns shows here. The estimators
# have programs of their own (estimation/test_plain_loops.py); so have other forms of ACQB: slow.
WORDS = ("acqb", "acqb_fifo", "acqb_rr", "acqb_random", "acqb_explore_fifo", "cqb_eps")
QUICK = {"small-1": (*WORDS, *recorded.SIMPLE, *recorded.BANDITS)}


def play(
    runs: list[tuple[Case, str]], estimator: str, among: tuple[str, ...] = ()
) -> list[reference.Trajectory]:
    """Return whole runs, each by the policy of its label, with an exact estimate every round."""
    steps = EXACT_STEPS[runs[0][0].assortment_size]
    # Where verdicts are kept, who asks the same again has ever more who wait.
    slots = 64 if runs[0][0].problem.outcome == "attempt" else HORIZON
    return recorded.play(runs, slots, among, estimator=estimator, exact_steps=steps)


def differences(ours: reference.Trajectory, theirs: reference.Trajectory) -> dict[str, int]:
    """Return the fields that differ and the first round (from 1) in which each does."""
    first_rounds = {}
    for field in dataclasses.fields(reference.Trajectory):
        one, other = getattr(ours, field.name), getattr(theirs, field.name)
        assert one.shape == other.shape, field.name
        differs = one != other
        if field.name not in EXACT:
            differs = ~(np.abs(one - other) <= (1e-9 if field.name == "regret" else 1e-6))
        rounds = np.flatnonzero(differs.reshape(len(one), -1).any(axis=1))
        if len(rounds):
            first_rounds[field.name] = int(rounds[0]) + 1
    return first_rounds


def check_the_run_is_worth_comparing(label: str, run: reference.Trajectory) -> None:
    """Refuse a run in which nothing happens that could tell two simulators apart."""
    served = run.query[run.query >= 0]
    assert len(np.unique(served)) > 30
    assert (run.choice[run.query >= 0] < 0).any(), "no retrial"
    assert run.queue_length.max() >= 3
    if label in recorded.MIXED:
        alone = run.assortment[:, -1] < 0
        assert (run.explored & ~alone).any() and (alone & (run.query >= 0)).any()
    if label in (*recorded.OPTIMISTIC, *recorded.WINDOWED, *recorded.MIXED):
        assert run.explored.any() and not run.explored[run.query >= 0].all()
        assert np.abs(run.theta[-1]).max() > 0.05


def check_whole_runs(name: str, labels: tuple[str, ...], among: tuple[str, ...] = ()) -> None:
    case, estimator = CASES[name]
    workload, draws = recorded.record(case)
    played = play([(case, label) for label in labels], estimator, among)
    empty_rounds = 0
    for label, ours in zip(labels, played, strict=True):
        theirs = reference.simulate(label, workload, draws, case.settings())
        differing = differences(ours, theirs)
        assert not differing, f"{label}: field -> first round that differs: {differing}"
        check_the_run_is_worth_comparing(label, theirs)
        empty_rounds += int((theirs.query < 0).sum())
    # Round 1 is always empty; later ones must be met too.
    assert empty_rounds > len(labels)


@pytest.mark.parametrize("name", QUICK)
def test_whole_runs_of_acqb_are_identical(name: str, x64: None) -> None:
    check_whole_runs(name, QUICK[name], QUICK[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", MEMORY)
def test_whole_runs_with_retry_memory_are_identical(name: str, x64: None) -> None:
    case = MEMORY[name]
    workload, draws = recorded.record(case)
    if name == "query":
        assert len(np.unique(workload.arrival_index)) == HORIZON, "a prompt comes twice"
    played = play([(case, label) for label in REMEMBER], "newton_cg", REMEMBER)
    for label, ours in zip(REMEMBER, played, strict=True):
        theirs = reference.simulate(label, workload, draws, case.settings())
        differing = differences(ours, theirs)
        assert not differing, f"{label}: field -> first round that differs: {differing}"
        assert (theirs.choice[theirs.query >= 0] < 0).any(), "no retrial"
        # Settings that are distinguished here must change a decision.
        plain = dataclasses.replace(draws, fixed_uniforms=None)
        other = dataclasses.replace(case, recall_by="row").settings()
        differs = differences(theirs, reference.simulate(label, workload, plain, other))
        assert differs or (name == "alike" and "recall" not in label and "cache" not in label)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_whole_runs_are_identical_for_every_policy(name: str, x64: None) -> None:
    case, _ = CASES[name]
    labels = recorded.labels(case)
    undefined = set(recorded.MIXED if case.assortment_size == 1 else recorded.BANDITS)
    assert set(labels) == set(reference.POLICIES) - undefined
    among = tuple(label for label in labels if name not in FEW or label not in FORMS)
    left = tuple(label for label in among if label not in QUICK.get(name, ()))
    check_whole_runs(name, left, among)


def long_cases() -> dict[str, Case]:
    """Return runs whose blocks have rows on several pages of the estimator."""
    few = sources.Synthetic(num_servers=2, dim=3)
    some = sources.Synthetic(num_servers=3, dim=3)
    shared = dataclasses.replace(some, parameters="shared")
    return {
        "disjoint-1": Case(few, 1, 0.6, 420, seed=11),
        "disjoint-2": Case(some, 2, 0.7, 420, seed=2),
        "shared-1": Case(shared, 1, 0.6, 420, seed=3),
        "shared-2": Case(shared, 2, 0.7, 420, seed=4),
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", long_cases())
def test_runs_over_several_pages_decide_identically_without_exact_steps(name, x64: None) -> None:
    case = long_cases()[name]
    [ours] = recorded.play([(case, "acqb")], among=["acqb"], estimator="running", exact_steps=0)
    workload, draws = recorded.record(case)

    def differs(settings: reference.Settings) -> np.ndarray:
        theirs = reference.simulate("acqb", workload, draws, settings)
        assert (theirs.query >= 0).sum() > 300
        for field in EXACT:
            np.testing.assert_array_equal(getattr(ours, field), getattr(theirs, field), field)
        return np.abs(ours.theta - theirs.theta) - 1e-3 * np.abs(theirs.theta)

    assert differs(case.settings()).max() <= 1e-3
    with pytest.raises(AssertionError):
        assert differs(dataclasses.replace(case.settings(), lambda0=1.05)).max() <= 1e-3


class PlantedFault:
    """The whole-run comparison of one policy, with the reference free to be made wrong."""

    def __init__(self, name: str, label: str, seeds: range) -> None:
        self.case, estimator = CASES[name]
        self.label, self.seeds = label, seeds
        cases = {seed: dataclasses.replace(self.case, seed=seed) for seed in seeds}
        played = play([(case, label) for case in cases.values()], estimator)
        self.played = dict(zip(seeds, played, strict=True))
        self.recorded = {seed: recorded.record(case) for seed, case in cases.items()}

    def find_differences(self, seed: int, spoil=None, **wrong: float) -> dict[str, int]:
        """Return what differs when the reference has wrong settings or `spoil`ed draws."""
        ours, (workload, draws) = self.played[seed], self.recorded[seed]
        if spoil is not None:
            draws = spoil(draws, ours)
        settings = dataclasses.replace(self.case.settings(), **wrong)
        return differences(ours, reference.simulate(self.label, workload, draws, settings))

    def notice(self, spoil=None, **wrong: float) -> dict[str, int]:
        """Return what the first of several runs to differ shows."""
        for seed in self.seeds:
            differing = self.find_differences(seed, spoil, **wrong)
            if differing:
                return differing
        return {}


@pytest.mark.slow
def test_slightly_wrong_settings_are_detected(x64: None) -> None:
    planted = PlantedFault("routing-1", "acqb", range(40))
    case = planted.case
    assert not any(planted.find_differences(seed) for seed in range(4))
    for field, change in (("alpha_scale", 1e-3), ("kappa", 1e-3), ("c1", 0.1)):
        wrong = {field: getattr(case, field) + change}
        assert "assortment" in planted.notice(**wrong), field
    # The estimate is compared every round, so the smallest change of its objective shows at once.
    assert planted.find_differences(0, lambda0=case.lambda0 + 1e-5)["theta"] <= 5


def one_more_exploration(draws: reference.Draws, ours: reference.Trajectory) -> reference.Draws:
    """Make a round after an arrival explore that did not."""
    arrived = np.append(False, draws.arrival[:-1] < CASES["routing-1"][0].arrival_rate)
    at = next(t for t in np.flatnonzero(arrived) if t >= HORIZON // 2 and not ours.explored[t])
    return with_entry(draws, "explore", at, 0.0)


def one_other_sample(draws: reference.Draws, ours: reference.Trajectory) -> reference.Draws:
    """Negate the Thompson samples of one exploitation round."""
    at = next(t for t in range(HORIZON // 2, HORIZON) if ours.query[t] > 0 and not ours.explored[t])
    return with_entry(draws, "normal", at, -draws.normal[at])


def one_other_arrival(draws: reference.Draws, ours: reference.Trajectory) -> reference.Draws:
    """Let a query arrive where none did, or the other way round."""
    at = HORIZON // 2
    arrives = draws.arrival[at] < CASES["routing-1"][0].arrival_rate
    return with_entry(draws, "arrival", at, 1.0 if arrives else 0.0)


def with_entry(draws: reference.Draws, field: str, at: int, value: object) -> reference.Draws:
    """Return the draws with one round's entry replaced."""
    column = getattr(draws, field).copy()
    column[at] = value
    return dataclasses.replace(draws, **{field: column})


@pytest.mark.slow
@pytest.mark.parametrize(
    "spoil, field",
    [
        (one_more_exploration, "explored"),
        (one_other_sample, "query"),
        (one_other_arrival, "queue_length"),
    ],
)
def test_single_wrong_draws_are_detected(spoil, field: str, x64: None) -> None:
    differing = PlantedFault("routing-1", "acqb", range(9, 14)).notice(spoil)
    assert differing.get(field, 0) > HORIZON // 2, differing


def one_showing_too_many(self, b: int) -> float:
    self.shown[b] += 1
    alpha = RADIUS(self, b)
    self.shown[b] -= 1
    return alpha


def transposed_root(self, normal):
    roots = self.root.copy()
    self.root[:] = np.swapaxes(roots, 1, 2)
    samples = SAMPLES(self, normal)
    self.root[:] = roots
    return samples


def every_block_moves(self, free) -> None:
    FIT(self, list(range(len(self.theta))))


def stale_row(self, b: int, x) -> None:
    GROW(self, b, x if self.shown[b] != 20 else 0 * x)


RADIUS, SAMPLES = reference.Estimator.radius, reference.Estimator.samples
FIT, GROW = reference.Estimator._fit, reference.Estimator._grow
FAULTS = {
    "radius": one_showing_too_many,
    "samples": transposed_root,
    "_fit": every_block_moves,
    "_grow": stale_row,
}


@pytest.mark.slow
def test_planted_algorithm_faults_are_detected(x64: None, monkeypatch) -> None:
    planted = PlantedFault("disjoint-2", "acqb", range(2, 6))
    assert not planted.notice()
    for method, fault in FAULTS.items():
        with monkeypatch.context() as patch:
            patch.setattr(reference.Estimator, method, fault)
            fields = planted.notice()
        assert "theta" in fields and ("assortment" in fields or method == "_fit"), (method, fields)
    assert not planted.notice()
