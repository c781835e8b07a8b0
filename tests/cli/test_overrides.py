"""What is typed is read by something that runs, or refused by its name before work starts."""

import dataclasses
import re

import pytest
from composing import EXPERIMENTS
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from tiers import cases

from cqbjax import dynamics
from cqbjax.cli import _command, _compose, _instantiate
from cqbjax.core.pytree import check_numbers
from cqbjax.experiments import grid, study_types, validation
from cqbjax.sources import Synthetic
from cqbjax.testing import fairness

SMALL = ("num_seeds=2", "horizon=40")


@pytest.fixture(scope="module", autouse=True)
def hydra_context():
    """Hydra, initialised once: a test of it takes as long as all of these."""
    with _compose.initialize_hydra():
        yield


def check(*words):
    """Check words as a command does, those of a sweep where one has several values."""
    jobs = _compose.compose_jobs(_compose.combine_words([*words]))
    _compose.check_words(jobs[0].words, [job.config for job in jobs])
    return jobs


UNREAD = {
    "tries is read by nothing here, but by best_llm": ("policy=[acqb]", "tries=1,100"),
    "tries is read by nothing": ("policy=[thompson]", "tries=[1,100]"),
    "linucb_alpha is read by nothing here, but by linucb": ("linucb_alpha=nan",),
    "head.epochs is read by nothing here, but by acqb_cl": ("head.epochs=3",),
    "head is read by nothing here": ("head=sprout",),
    "warm.weight is read by nothing": ("warm.weight=3",),
    "preset is read by nothing": ("policy=[random]", "preset=theory"),
    "+mine is read by nothing: leave it out": ("+mine=3",),
    "precision is read with policy.acqb.retry=posterior or recall alone":
        ("policy=[acqb]", "precision=9"),
    "num_samples is read with policy.acqb_ucb.optimism=thompson alone":
        ("policy=[acqb_ucb]", "num_samples=4"),
    "c1 is read with policy.cqb_eps.exploration=": ("policy=[cqb_eps]", "c1=0.4"),
    "c1 is read by nothing": ("policy=[acqb]", "policy.acqb.c1=0.2", "c1=0.4"),
    "rates_by_K is read with arrival_rate=by_rule": ("rates_by_K={1: [0.4]}",),
    "service.prices.since is read with service.prices.factors alone":
        ("service=[prices]", "service.prices.since=20"),
    "users.impatient.pretends is read with users.impatient.attempts or give_up alone":
        ("users=[impatient]", "users.impatient.pretends=0.5"),
    "service.outages.length is read with service.outages.share alone":
        ("service=[outages]", "service.outages.share=0", "service.outages.length=5"),
    "source.shares is read with source.classes alone": ("source=coin", "source.shares=[1]"),
    "horizon is not read by OfflineValue": ("kind=offline_value", "horizon=3"),
    "policy is not read by Sensitivity": ("kind=sensitivity", "policy=[acqb]"),
    "spread is not read by Slopes": ("kind=slopes", "kind.windows=[[1,9]]", "spread=sd"),
    "record_every is not read by Events": ("kind=events", "record_every=2"),
    "policy=[acqb,acqb] must name nothing twice": ("policy=[acqb,acqb]",),
    "users=[stay, stay] must name nothing twice": ("users=[stay, stay]",),
}  # fmt: skip


# One of each way to be read by nothing.
QUICK = (
    "tries is read by nothing here, but by best_llm", "+mine is read by nothing: leave it out",
    "c1 is read with policy.cqb_eps.exploration=",
    "service.prices.since is read with service.prices.factors alone",
    "policy is not read by Sensitivity", "users=[stay, stay] must name nothing twice",
)  # fmt: skip


@pytest.mark.parametrize("message", cases(UNREAD, QUICK))
def test_unused_overrides_are_rejected(message):
    with pytest.raises(ValueError) as refusal:
        check(*UNREAD[message])
    assert str(refusal.value).startswith(message)


READ = [
    ("policy=[best_llm]", "tries=3"), ("policy=[acqb],[linucb]", "linucb_alpha=3"),
    ("policy=[acqb_recall]", "precision=9"), ("policy=[knn_posterior]", "precision=9"),
    ("policy=[cqb_eps]", "explore_rounds=stabilised", "c1=3"), ("policy=[acqb_cl]", "head=sprout"),
    ("preset=theory",), ("kind=sensitivity", "kappa=2"),
    ("users=[impatient]", "users.impatient.attempts=2", "users.impatient.pretends=0.5"),
    ("+horizon2=40", "+policy.random.x=${horizon2}"), ("~policy.random",),
]  # fmt: skip


@pytest.mark.parametrize("words", cases(READ, [READ[1], READ[6], READ[9]]), ids=" ".join)
def test_used_overrides_are_accepted(words):
    check(*words)


@pytest.mark.slow
def test_keys_of_unselected_choices_are_rejected():
    """By the files themselves: a new constant is refused without being named anywhere else."""
    shipped, readers = _compose._list_keys()
    assert {"tries", "linucb_alpha", "kappa", "head", "warm", "window"} <= readers.keys()
    (job,) = _compose.compose_jobs([["source=coin", "policy=[random]"]])
    for key in readers.keys() - {"num_servers"}:
        with pytest.raises(ValueError, match=f"^{key} is (read by nothing|not read)"):
            _compose.check_words([f"{key}=3"], [job.config])
    for key in shipped - readers.keys() - dict(validation.CONDITIONS).keys() - {"preset"}:
        _compose.check_words([f"{key}={job.config.get(key)}"], [job.config])


@pytest.mark.slow
def test_values_of_experiment_files_are_accepted():
    for name in EXPERIMENTS:
        check(f"experiment={name}")
    check("experiment=routerbench", "kind=offline_value")


def check_or_refuse(*words):
    """Check words and all that is made of them; return the points, or the refusal."""
    try:
        (job,) = check(*words)
        validation.name_files(job.config)
        try:
            return study_types.prepare_points(job.config, _instantiate.make)
        except ValueError as error:
            return validation.name_typed_key(str(error), job.words, job.config)
    except ValueError as error:
        return str(error)


VALUES = {
    "title=3": "title=3 must be a word, or null", "results_dir=3": "results_dir=3 must be a folder",
    "data_dir=null": "data_dir=None must be a folder",
    "cache_dir=[a]": "cache_dir=['a'] must be a folder, or null",
    "kappa=1e39": "kappa=1e+39 must be at most 3.40282e+38, what float32 holds",
    "memory_gb=1e39": "memory_gb=1e+39 must be at most",
    "num_seeds=2147483648": "what is recorded takes",
    "horizon=2147483647": "horizon=2147483647 must be a whole number of rounds",
    "horizon=1073741824": "memory_gb must allow a run of",
    "first_seed=-1": "first_seed=-1 must be at least 0",
    "drift.quarter=no": "drift.quarter=no must be a number of rounds, or null",
    "num_samples=100000": "num_samples=100000 takes 500,000 products a query",
    "service=[late] service.late.delay=100000000":
        "service.late.delay=100000000 must be at most horizon=40 rounds",
    "policy=[linucb] linucb_alpha=-1": "linucb_alpha=-1 must be",
    "arrivals=batches batch_most=0": "batch_most=0 must be",
    "policy.acqb.c1=null": "policy.acqb.c1=None must be",
    "users=[impatient] users.impatient.give_up=null":
        "users.impatient.give_up=None must be a number",
    "service=[count] service.count.count=many": "service.count.count=many must be a whole number",
    "service=[count] service.count.count=1000000000000": "service.count.count=1000000000000 times",
    "source=coin source.classes=0.5": "source.classes=0.5 must be a list of numbers",
    "users=[orbit] users.orbit.delays=3": "users.orbit.delays=3 must be a Parquet or CSV file",
}  # fmt: skip


QUICK_VALUES = (
    "kappa=1e39", "num_seeds=2147483648", "drift.quarter=no", "policy=[linucb] linucb_alpha=-1",
    "service=[late] service.late.delay=100000000", "users=[orbit] users.orbit.delays=3",
)  # fmt: skip


@pytest.mark.parametrize("words", cases(VALUES, QUICK_VALUES))
def test_invalid_values_are_rejected_with_the_typed_key(words):
    parsed = {word.partition("=")[0] for word in words.split()}
    small = [word for word in SMALL if word.partition("=")[0] not in parsed]
    message = check_or_refuse(*words.split(), *small)
    assert str(message).startswith(VALUES[words]), message


def leaves(node, above=""):
    for key, value in node.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


@pytest.mark.slow
def test_switches_accept_only_true_or_false():
    (job,) = _compose.compose_jobs([["source=paretobandit", "policy=[random]"]])
    switches = [key for key, value in leaves(job.config) if isinstance(value, bool)]
    assert {"rerun", "dry_run", "fail_fast", "queries", "source.min_max"} <= {*switches}
    for key in switches:
        for word in ("no", "x", "1"):
            message = check_or_refuse(
                "source=paretobandit", "policy=[random]", *SMALL, f"{key}={word}"
            )
            assert message == f"{key}={word} must be true or false"


WRONG = ("many", "-1", "2.5", "[]", "null", "1e39", "nan", "true", "{a: 1}")


@pytest.mark.slow
def test_every_value_of_a_study_key_is_rejected_in_one_sentence_or_used():
    """All of them, as far as the configuration shows it by itself; the slow tier makes objects."""
    (job,) = _compose.compose_jobs([[*SMALL, "policy=[random]"]])
    keys = [key for key, _ in leaves(job.config) if key != "grid" and "_target_" not in key]
    assert len(keys) > 50
    for key in keys:
        for value in WRONG:
            parsed = OmegaConf.to_container(OmegaConf.create(f"x: {value}"))["x"]
            try:
                config = job.config.with_values({key: parsed})
                validation.name_files(config)
                grid.compose(config)
            except (ValueError, OmegaConfBaseException) as refusal:
                assert re.match(r"[^\n]+$", _command.explain(refusal))


KINDS = [getattr(dynamics, name) for name in dynamics.__all__ if name[0].isupper()]


def test_array_fields_accept_only_numbers():
    check_numbers(dynamics.Outages(servers=[0, 2]))
    check_numbers(fairness.permute_servers(Synthetic(), (1, 2, 0)))
    with pytest.raises(ValueError, match="^servers=True must be a list of numbers"):
        check_numbers(dynamics.Outages(servers=True))


@pytest.mark.parametrize("kind", KINDS)
def test_scalar_fields_reject_words_booleans_and_mappings(kind):
    one = kind()
    check_numbers(one)
    for field in dataclasses.fields(kind):
        for value in () if isinstance(field.default, str) else ("many", True, {"a": 1}):
            with pytest.raises(ValueError, match=f"^{field.name}=.* must be "):
                check_numbers(dataclasses.replace(one, **{field.name: value}))


# Words of an unnamed study -> the name of its results.
UNNAMED = {
    "": "custom", "num_seeds=9 arrival_rate=0.5 policy=[acqb] verbose=true title=T": "custom",
    "K=2 horizon=3000": "custom,K=2,horizon=3000", "horizon=3000 K=2": "custom,K=2,horizon=3000",
    "policy.acqb.c1=3 ~policy.random": "custom,policy.acqb.c1=3",
    "users=[orbit] alpha_scale=[0.1,0.2]": "custom,users=orbit",
    "K=1,2 c1=0.5": "custom,c1=0.5", "name=custom K=2": "custom", "name=mine K=2": "mine",
    "experiment=synthetic K=2": "synthetic", "kind=sensitivity": "sensitivity_custom",
}  # fmt: skip


QUICK_UNNAMED = ("", "horizon=3000 K=2", "users=[orbit] alpha_scale=[0.1,0.2]", "K=1,2 c1=0.5")


@pytest.mark.parametrize("words", cases(UNNAMED, QUICK_UNNAMED))
def test_unnamed_studies_are_named_after_their_settings(words):
    jobs = _compose.compose_jobs(_compose.combine_words(words.split()))
    assert {_command._name_study(job).config.name for job in jobs} == {UNNAMED[words]}


def test_settings_that_cannot_name_a_file_are_distinguished_by_a_hash():
    jobs = _compose.compose_jobs(
        [["trace=a/b.csv"], ["trace=a_b.csv"], ["trace_column=" + 99 * "x"]]
    )
    names = [_command._name_study(job._replace(swept={})).config.name for job in jobs]
    assert names[0].startswith("custom,trace=a_b.csv-") and names[1] == "custom,trace=a_b.csv"
    assert len(names[2]) < 80
