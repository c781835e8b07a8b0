"""Validate a sweep before anything compiles; each error is one sentence that names the argument."""

import dataclasses
import functools
import inspect
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cqbjax.core import conformance, contract, mnl, pytree
from cqbjax.core.inputs import check_float32, is_integer, is_number, round_fraction, suggest_names
from cqbjax.core.labels import OPTIMAL
from cqbjax.core.recorders import OPTIONAL, STANDARD, Recorder
from cqbjax.core.rng import MAX_SEED
from cqbjax.core.scenario import UserModel, base_source, models_of
from cqbjax.core.types import Policy, Problem, Source
from cqbjax.engine import memory
from cqbjax.engine.batches import initial_slots
from cqbjax.engine.progress import Reporter
from cqbjax.engine.spec import Capacity, PerSeed, SweepSpec, choose_records
from cqbjax.policies.baselines import OptimalPolicy

MAX_ROUNDS = 2**30
CACHE_SIZE = 256
# Names of a stored result that are not names of recorders.
RESERVED_NAMES = (
    "policy", "arrival_rate", "seed", "round", "point", "optimal_queue_length",
    "seconds_per_round", "compile_seconds", "gap", "throughput",
)  # fmt: skip


def build_spec(
    policies: Mapping[str, Policy | PerSeed],
    source: Source,
    arrival_rate: Sequence[float],
    seeds: Sequence[int],
    horizon: int,
    K: int = 1,
    record_every: int | None = None,
    capacity: Capacity = "auto",
    record: Sequence[Recorder | str] = (),
    memory_gb: float | None = None,
    devices: Sequence[jax.Device] | None = None,
) -> SweepSpec:
    """Validate the arguments of a sweep and return its spec.

    Arguments and errors are those of `cqbjax.sweep`; `source` includes the user and service
    dynamics. The slow check, drawing what the source would draw, comes last.
    """
    _check_labels(policies)
    _check_runs(horizon, capacity)
    records = choose_records(horizon, record_every)
    check_seeds(seeds)
    with contract.prefix_errors("source"):
        contract.check_source_class(source)
        pytree.check_numbers(source)
        problem = source.problem(1, horizon)
    check_rates(arrival_rate, problem.max_arrivals)
    every_policy = add_optimal(policies)
    check_assortments(problem.num_servers, K)
    with contract.prefix_errors("source"):
        problem = source.problem(K, horizon)
    if max(problem.attempts, problem.max_queries) > MAX_ROUNDS:
        raise ValueError(
            f"count={problem.channels} times horizon={horizon} must be at most 2^30 attempts, and "
            f"{problem.max_arrivals} arrivals a round times horizon too"
        )
    recorders = _check_recorders(record, problem)
    runs = len(policies) * len(arrival_rate) * len(seeds)
    size, most = runs * memory.record_bytes(recorders, problem, records), memory.machine_memory()
    if size > most:
        raise ValueError(
            f"what is recorded takes {size / 1e9:.4g} GB, and the machine has {most / 1e9:.3g}: "
            "lower num_seeds or horizon, raise record_every, or give the seeds in several studies "
            "by first_seed"
        )
    numbers = np.asarray(seeds, int)
    rates = np.asarray([round_fraction(float(rate)) for rate in arrival_rate])
    spec = SweepSpec(every_policy, source, problem, rates, numbers, records, capacity, recorders)
    # A source of this package first checks its fields alone (with no seed), because shapes are
    # computed from them. It draws last; a user-defined source draws once, here.
    user_defined = contract.is_third_party(source)
    _check_drawn(source, numbers if user_defined else numbers[:0], arrival_rate, K)
    _check_source(source, problem)
    check_policies(spec, policies, memory_gb, devices)
    if not user_defined:
        _check_drawn(source, numbers, arrival_rate, K)
    return spec


def replace_policies(spec: SweepSpec, policies: Mapping[str, Policy | PerSeed]) -> SweepSpec:
    """Return the spec with other policies; those that are not in the spec yet are validated.

    Args:
        spec: from `build_spec`.
        policies: label -> policy, for example routers that have been trained in the meantime.

    Raises:
        ValueError, ContractError: as `build_spec`, for a new policy.
    """
    new = {label: one for label, one in policies.items() if spec.policies.get(label) is not one}
    check_policies(spec, new)
    return dataclasses.replace(spec, policies=add_optimal(policies))


def check_policies(
    spec: SweepSpec,
    policies: Mapping[str, Policy | PerSeed],
    memory_gb: float | None = None,
    devices: Sequence[jax.Device] | None = None,
) -> None:
    """Validate policies for the shapes of a spec, and that one run of each fits the memory."""
    places = devices or jax.devices()
    budget = memory.device_budget(memory_gb, places)
    slots = initial_slots(spec.problem, spec.capacity)
    # The signature of the source, without copying its tables.
    source = pytree.signature_of(
        jax.tree.map(lambda leaf: leaf if hasattr(leaf, "dtype") else np.float32(leaf), spec.source)
    )
    for label, policy in policies.items():
        signature = _check_policy(label, policy, spec.seeds, spec.problem)
        with contract.prefix_errors(f"policy {label}"):
            size = memory.bytes_per_run(signature, source, spec.problem, slots, spec.recorders)
            size += memory.drawn_bytes(signature, spec.problem)
        memory.chunk_width(size, 1, 1, places, budget)


def _check_labels(policies: Any) -> None:
    if not isinstance(policies, Mapping):
        kind = type(policies).__name__
        raise ValueError(f"policies must map a label to each policy, and it is of type {kind}")
    if not policies:
        raise ValueError("policies must name at least one policy")
    for label in policies:
        if not isinstance(label, str) or not label.strip() or not label.isprintable():
            raise ValueError(f"policies: label {label!r} must be a word, with letters to read")


def _check_runs(horizon: Any, capacity: Any) -> None:
    if not is_integer(horizon) or not 1 <= horizon <= MAX_ROUNDS:
        raise ValueError(
            f"horizon={horizon!r} must be a whole number of rounds, at least 1 and at most 2^30"
        )
    if capacity != "auto" and not (is_integer(capacity) and 1 <= capacity < MAX_SEED):
        raise ValueError(
            f"capacity={capacity} must be `auto` or a whole number of slots, at least 1"
        )


def check_options(progress: Any, resume: Any, queries: Any) -> None:
    """Check the options of `cqbjax.sweep` that do not change its numbers, and `queries`."""
    if not isinstance(queries, bool):
        raise ValueError(f"queries={queries!r} must be True or False")
    if not isinstance(progress, bool | Reporter):
        raise ValueError(f"progress={progress!r} must be True, False or a Reporter")
    if resume is not None and not isinstance(resume, str | Path):
        raise ValueError(f"resume={resume!r} must be a folder, or None")


def choose_seeds(
    num_seeds: int | None, first_seed: int, seeds: Sequence[int] | None
) -> Sequence[int]:
    """Return the seeds of `cqbjax.sweep`: a range, or the list that it was given."""
    if is_integer(seeds):
        raise ValueError(f"seeds={seeds} must be a list: write num_seeds={seeds}")
    if seeds is not None:
        if num_seeds is not None or first_seed != 0:
            raise ValueError("seeds must be given without num_seeds and first_seed")
        return seeds
    if num_seeds is None or not is_integer(num_seeds) or not is_integer(first_seed):
        raise ValueError(
            f"num_seeds={num_seeds!r} and first_seed={first_seed!r} must be whole numbers"
        )
    return range(first_seed, first_seed + num_seeds)


def check_seeds(seeds: Sequence[int]) -> None:
    """Require at least one seed, all distinct integers in [0, 2^31); [S].

    Of a range the ends are checked: it may be too large to become an array.
    """
    is_range = isinstance(seeds, range)
    numbers = np.asarray([*seeds[:1], *seeds[-1:]] if is_range else seeds)
    if numbers.ndim != 1 or (numbers.size and not np.issubdtype(numbers.dtype, np.integer)):
        raise ValueError(f"seeds={seeds!r} must be integers, in a list")
    if not numbers.size:
        raise ValueError("num_seeds must be at least 1")
    if numbers.min() < 0 or not (is_range or len(np.unique(numbers)) == len(numbers)):
        raise ValueError("seeds must be distinct and not negative")
    if numbers.max() >= MAX_SEED:
        raise ValueError("seeds must be below 2^31")


def check_rates(arrival_rate: Sequence[float], largest: int) -> None:
    """Require a list of distinct rates in [0, `largest`] queries per round."""
    listed = np.ndim(arrival_rate) == 1 and not isinstance(arrival_rate, str)
    if not listed or not all(map(is_number, arrival_rate)):
        raise ValueError(f"arrival_rate={arrival_rate!r} must be a list of numbers")
    if not len(arrival_rate):
        raise ValueError("arrival_rate must name at least one rate")
    if len({round_fraction(float(rate)) for rate in arrival_rate}) < len(arrival_rate):
        raise ValueError("arrival_rate must name distinct rates, and to 12 digits two are the same")
    for rate in arrival_rate:
        if not 0.0 <= rate <= largest:
            raise ValueError(f"arrival_rate={rate:g} must lie in [0, {largest}] queries a round")


def check_assortments(num_servers: int, K: int) -> None:
    """Require 1 <= K <= N, and assortments of K of N servers that an int32 can count."""
    if not is_integer(K):
        raise ValueError(f"K={K!r} must be a whole number")
    if not 1 <= K <= num_servers:
        raise ValueError(f"K={K} must lie in 1..N, and N={num_servers} servers")
    if mnl.num_assortments(num_servers, K) >= 2**31:
        raise ValueError(
            f"K={K} of N={num_servers} servers gives 2^31 assortments or more, too many for the "
            "round-robin; lower K"
        )


def _check_drawn(source: Source, seeds: np.ndarray, rates: Sequence[float], K: int) -> None:
    """Let a source raise for what it cannot draw."""
    for rate in rates:
        with contract.prefix_errors("source"):
            source.check(seeds, rate, K)


def _check_source(source: Source, problem: Problem) -> None:
    """Check a source and its dynamics; trace what those that are user-defined draw."""
    _check_leaves(source)
    inside = base_source(source)
    own = contract.find_third_party(inside)
    if own is not None:
        with contract.prefix_errors(f"source {type(own).__name__}"):
            conformance.check_source(_shapes(inside), problem)
    for model in models_of(source):
        delay = getattr(model, "delay", 0)
        if delay > problem.horizon:
            raise ValueError(
                f"delay={delay} must be at most horizon={problem.horizon} rounds: nothing would "
                "ever be learnt"
            )
        if contract.is_third_party(model):
            group = "users" if isinstance(model, UserModel) else "service"
            with contract.prefix_errors(f"{group} {type(model).__name__}"):
                conformance.check_dynamics(_shapes(model), problem)


def _check_leaves(tree: Any) -> None:
    """Require numbers that are finite as float32."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if is_number(leaf) or getattr(leaf, "dtype", None) == np.float64:
            for value in np.unique(leaf):
                check_float32(value, str(path[-1]).strip("."))


def _shapes(tree: Any) -> Any:
    """Return a source or a dynamics model with shapes in place of its numbers."""
    return pytree.signature_of(pytree.as_arrays(tree)).shapes()


def add_optimal(policies: Mapping[str, Any]) -> dict[str, Any]:
    """Return the policies with the optimal policy, which runs in every sweep.

    Raises:
        ValueError: its label is used for another policy, so that every regret would be wrong.
    """
    optimal = policies.get(OPTIMAL, OptimalPolicy())
    if type(optimal) is not OptimalPolicy:
        raise ValueError(
            f"policy {OPTIMAL} must be cqbjax.policies.OptimalPolicy(), the oracle that regret "
            f"is measured against, and it is {type(optimal).__name__}: give that another label"
        )
    return {**policies, OPTIMAL: optimal}


def _check_recorders(record: Sequence[Recorder | str], problem: Problem) -> tuple[Recorder, ...]:
    """Return all recorders of a sweep: `recorders.STANDARD` and those of `record`.

    Raises:
        ValueError: one is not a recorder, has a reserved name, or shapes that change or disagree.
    """
    if not isinstance(record, list | tuple):
        raise ValueError(f"record={record} must be a list")
    more = [find_recorder(one) for one in record]
    names = [*RESERVED_NAMES, *(one.name for one in STANDARD)]
    for one in more:
        with contract.prefix_errors("record"):
            contract.check_instance(one)
        kind = type(one).__name__
        frozen = getattr(type(one), "__dataclass_params__", None)
        if not isinstance(one, Recorder) or frozen is None or not frozen.frozen:
            raise ValueError(
                f"recorder {kind} must be a frozen dataclass made from core.recorders.Recorder"
            )
        if one.name in names:
            raise ValueError(f"recorder {kind} has the name {one.name}, which is taken")
        names.append(one.name)
        one.check(problem)
    recorders = (*STANDARD, *more)
    if more:
        _trace_recorders(recorders, problem)
    return recorders


def find_recorder(recorder: Recorder | str) -> Recorder:
    """Return the recorder with a name, or the recorder itself.

    Raises:
        ValueError: the name is unknown.
    """
    if not isinstance(recorder, str):
        return recorder
    if recorder not in OPTIONAL:
        raise ValueError(f"record={recorder} is unknown{suggest_names(recorder, [*OPTIONAL])}")
    return OPTIONAL[recorder]


@functools.lru_cache(CACHE_SIZE)
def _trace_recorders(recorders: tuple[Recorder, ...], problem: Problem) -> None:
    """Trace a round with these recorders."""
    with contract.prefix_errors("record"):
        conformance.check_recorders(recorders, OptimalPolicy(), problem)


def _check_policy(
    label: str, policy: Policy | PerSeed, seeds: np.ndarray, problem: Problem
) -> pytree.Signature:
    """Check a policy, or each one of a `PerSeed`, and return its signature."""
    each = policy.policies if isinstance(policy, PerSeed) else (policy,)
    with contract.prefix_errors(f"policy {label}"):
        contract.check_class(each[0])
        _check_leaves(each[0])
    if isinstance(policy, PerSeed) and len(each) != len(seeds):
        raise ValueError(f"policy {label} is for {len(each)} seeds, and the sweep has {len(seeds)}")
    for seed, one in zip(seeds, each, strict=False):
        # Structures and shapes, not signatures: 1 and 1.0 are both floats later, and a leaf
        # that is not a number is left to the policy's own `check`, which names the field.
        outline, first = (
            (jax.tree.structure(p), [np.shape(leaf) for leaf in jax.tree.leaves(p)])
            for p in (one, each[0])
        )
        if outline != first:
            raise ValueError(
                f"policy {label} of seed {seed} must have the structure and the shapes of that "
                f"of seed {seeds[0]}"
            )
        if hasattr(one, "check"):
            with contract.prefix_errors(f"policy {label}"):
                one.check(problem)
    with contract.prefix_errors(f"policy {label}"):
        signature = pytree.signature_as_arrays(each[0])
        _trace_policy(signature, problem)
    return signature


def _locate(part: Any, breach: str) -> str:
    """Return the line of the method that a breach of the contract names first, else of `select`."""
    named = [word for word in re.findall(r"\w+", breach) if word in contract.POLICY_METHODS]
    name = type(part).__name__
    method = inspect.unwrap(getattr(type(part), named[0] if named else "select", type(part)))
    if not inspect.isfunction(method):
        return name
    code = method.__code__
    return f"{name}.{code.co_name}, line {code.co_firstlineno} of {Path(code.co_filename).name}"


@functools.lru_cache(CACHE_SIZE)
def _trace_policy(signature: pytree.Signature, problem: Problem) -> None:
    """Trace the `init` of a policy, or the whole round of a user-defined one.

    A policy that is not defined for these shapes raises.
    """
    policy = signature.shapes()
    third_party = contract.find_third_party(policy)
    if third_party is not None:
        try:
            conformance.check_policy(policy, problem)
        except (contract.ContractError, TypeError) as error:
            breach = str(error)
            if isinstance(error, TypeError):  # JAX's, for an output that is not an array
                output = re.search(r"type <class '(.*)'> at output component \[(\d)\]", breach)
                if output is None:
                    raise
                method = contract.POLICY_METHODS[int(output[2])]
                breach = f"{method} must return arrays only, and it returns a {output[1]}"
            raise contract.ContractError(f"{breach} ({_locate(third_party, breach)})") from error
        return
    contexts = jax.ShapeDtypeStruct(problem.contexts_shape, jnp.result_type(float))
    jax.eval_shape(lambda policy, table: policy.init(problem, table), policy, contexts)
