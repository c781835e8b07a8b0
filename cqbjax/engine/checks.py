"""What a sweep refuses before anything compiles, each in one sentence that names the key."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cqbjax.core import contract, pytree, shapes
from cqbjax.core.given import check_float32, is_number, is_whole, rounded
from cqbjax.core.labels import OPTIMAL
from cqbjax.core.recorders import ALWAYS, NAMED, Recorder
from cqbjax.core.rules import Users
from cqbjax.core.setting import alone, kinds_of
from cqbjax.core.types import Policy, Problem, Source
from cqbjax.engine import arguments, memory
from cqbjax.engine.arguments import MOST_ROUNDS
from cqbjax.engine.chunks import recorded_bytes
from cqbjax.engine.groups import least_slots
from cqbjax.engine.memory import bytes_a_run
from cqbjax.engine.parts import (
    Capacity,
    PerSeed,
    Records,
    choose_records,
    seed_numbers,
)
from cqbjax.policies.baselines import Optimal

KINDS_KEPT = 256
# Names that a stored result has beside its recorders'.
TAKEN = (
    "policy", "arrival_rate", "seed", "round", "point", "optimal_queue_length",
    "seconds_per_round", "compile_seconds", "gap", "throughput",
)  # fmt: skip


class Checked(NamedTuple):
    """What a sweep was asked for, nothing of it refused.

    Attributes:
        problem: the shapes.
        rates: [L] arrival rates.
        seeds: [S].
        records: which rounds are kept.
        recorders: all of them.
    """

    problem: Problem
    rates: np.ndarray
    seeds: np.ndarray
    records: Records
    recorders: tuple[Recorder, ...]


def check_sweep(
    policies: Mapping[str, Policy | PerSeed],
    source: Source,
    arrival_rates: Sequence[float],
    seeds: int | Sequence[int],
    horizon: int,
    assortment_size: int,
    capacity: Capacity,
    record_every: int | None = None,
    record: Sequence[Recorder | str] = (),
    memory_gb: float | None = None,
    devices: Sequence[jax.Device] | None = None,
) -> Checked:
    """Refuse what cannot run, in one sentence that names the key, before anything compiles.

    Arguments are those of `sweep`. What takes long, drawing what the source would, comes last.

    Raises:
        ValueError: for the first key that is out of range.
        ContractError: for a policy or source, none of this package's, that breaks the contract.
    """
    arguments.check_labels(policies)
    arguments.check_runs(horizon, capacity)
    records = choose_records(horizon, record_every)
    # As many as are asked for are made when their results are known to fit.
    asked: Any = range(seeds) if is_whole(seeds) else seeds  # type: ignore[arg-type]
    numbers = seed_numbers(asked[-1:] if isinstance(asked, range) else asked)
    with contract.naming("source"):
        contract.check_source_class(source)
        pytree.check_numbers(source)
        problem = source.problem(1, horizon)
    arguments.check_rates(arrival_rates, problem.arrivals_a_round)
    with_yardstick(policies)
    arguments.check_assortments(problem.num_servers, assortment_size)
    with contract.naming("source"):
        problem = source.problem(assortment_size, horizon)
    if max(problem.attempts, problem.most_queries) > MOST_ROUNDS:
        raise ValueError(
            f"count={problem.places} times horizon={horizon} must be at most 2^30 attempts, and "
            f"{problem.arrivals_a_round} arrivals a round times horizon too"
        )
    recorders = check_recorders(record, problem)
    runs = len(policies) * len(arrival_rates) * len(asked)
    memory.check_arrays(runs * recorded_bytes(recorders, problem, records))
    numbers = seed_numbers(asked)
    arguments.check_seeds(numbers)
    # Of no seed this package's look at their settings alone, before shapes are made of these.
    own = contract.is_foreign(source)
    _check_drawn(source, numbers if own else numbers[:0], arrival_rates, assortment_size)
    _check_source(source, problem)
    for label, policy in policies.items():
        _check_policy(label, policy, numbers, problem)
    _check_fit(policies, source, problem, capacity, recorders, memory_gb, devices)
    if not own:
        _check_drawn(source, numbers, arrival_rates, assortment_size)
    rates = np.asarray([rounded(float(rate)) for rate in arrival_rates])
    return Checked(problem, rates, numbers, records, recorders)


def _check_fit(
    policies: Mapping[str, Policy | PerSeed], source: Source, problem: Problem,
    capacity: Capacity, recorders: tuple[Recorder, ...], memory_gb: float | None,
    devices: Sequence[jax.Device] | None,
) -> None:  # fmt: skip
    """Refuse a policy of which a single run is larger than the memory for all."""
    places = devices or jax.devices()
    room, slots = memory.budget(memory_gb, places), least_slots(problem, capacity)
    # Its tables are not copied to be looked at.
    drawn = pytree.kind_of(
        jax.tree.map(lambda leaf: leaf if hasattr(leaf, "dtype") else np.float32(leaf), source)
    )
    for label, policy in policies.items():
        one = policy.policies[0] if isinstance(policy, PerSeed) else policy
        with contract.naming(f"policy {label}"):
            kind = pytree.kind_as_arrays(one)
            size = bytes_a_run(kind, drawn, problem, slots, recorders)
            size += memory.bytes_drawn(kind, problem)
        memory.width(size, 1, 1, places, room)


def _check_drawn(source: Source, seeds: np.ndarray, rates: Sequence[float], size: int) -> None:
    """Let a source refuse what it cannot draw."""
    for rate in rates:
        with contract.naming("source"):
            source.check(seeds, rate, size)


def _check_source(source: Source, problem: Problem) -> None:
    """Trace what a source and kinds that are none of this package's draw."""
    _check_leaves(source)
    inside = alone(source)
    own = contract.foreign(inside)
    if own is not None:
        with contract.naming(f"source {type(own).__name__}"):
            shapes.check_source(_shapes(inside), problem)
    for kind in kinds_of(source):
        delay = getattr(kind, "delay", 0)
        if delay > problem.horizon:
            raise ValueError(
                f"delay={delay} must be at most horizon={problem.horizon} rounds: nothing would "
                "ever be learnt"
            )
    for kind in filter(contract.is_foreign, kinds_of(source)):
        users = isinstance(kind, Users)
        with contract.naming(f"{'users' if users else 'service'} {type(kind).__name__}"):
            (shapes.check_users if users else shapes.check_service)(_shapes(kind), problem)


def _check_leaves(tree: Any) -> None:
    """Refuse numbers that would be infinite in a program."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if is_number(leaf) or getattr(leaf, "dtype", None) == np.float64:
            for value in np.unique(leaf):
                check_float32(value, str(path[-1]).strip("."))


def _shapes(tree: Any) -> Any:
    """Return a source or a kind with shapes for its numbers."""
    return pytree.kind_of(pytree.arrays(tree)).shapes()


def with_yardstick(policies: Mapping[str, Any]) -> dict[str, Any]:
    """Return the policies with the optimal one, which runs even unasked.

    Raises:
        ValueError: its label is given to another policy: every regret would be wrong.
    """
    given = policies.get(OPTIMAL, Optimal())
    if type(given) is not Optimal:
        raise ValueError(
            f"policy {OPTIMAL} must be cqbjax.policies.Optimal(), the yardstick that regret is "
            f"measured against, and it is {type(given).__name__}: give that another label"
        )
    return {**policies, OPTIMAL: given}


def check_recorders(more: Sequence[Recorder | str], problem: Problem) -> tuple[Recorder, ...]:
    """Return all recorders of a sweep.

    Args:
        more: those asked for beside `recorders.ALWAYS`, or names of `recorders.NAMED`.
        problem: the shapes.

    Raises:
        ValueError: one is none, has a name that is taken, or shapes that change or disagree.
    """
    if not isinstance(more, list | tuple):
        raise ValueError(f"record={more} must be a list")
    asked = [named(one) for one in more]
    whole = (*ALWAYS, *asked)
    names = [*TAKEN, *(one.name for one in ALWAYS)]
    for one in asked:
        with contract.naming("record"):
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
    if more:
        _check_records(whole, problem)
    return whole


def named(one: Recorder | str) -> Recorder:
    """Return the recorder of a name.

    Raises:
        ValueError: there is none of it.
    """
    if not isinstance(one, str):
        return one
    if one not in NAMED:
        raise ValueError(f"record={one} is unknown; choose from {', '.join(NAMED)}")
    return NAMED[one]


@functools.lru_cache(KINDS_KEPT)
def _check_records(recorders: tuple[Recorder, ...], problem: Problem) -> None:
    """Trace a round of recorders, once a kind."""
    with contract.naming("record"):
        shapes.check_recorders(recorders, Optimal(), problem)


def _check_policy(
    label: str, policy: Policy | PerSeed, seeds: np.ndarray, problem: Problem
) -> None:
    each = policy.policies if isinstance(policy, PerSeed) else (policy,)
    with contract.naming(f"policy {label}"):
        contract.check_class(each[0])
        _check_leaves(each[0])
    if isinstance(policy, PerSeed) and len(each) != len(seeds):
        raise ValueError(f"policy {label} is for {len(each)} seeds, and the sweep has {len(seeds)}")
    for seed, one in zip(seeds, each, strict=False):
        if _outline(one) != _outline(each[0]):
            raise ValueError(
                f"policy {label} of seed {seed} must have the structure and the shapes of that "
                f"of seed {seeds[0]}"
            )
        if hasattr(one, "check"):
            with contract.naming(f"policy {label}"):
                one.check(problem)
    with contract.naming(f"policy {label}"):
        _check_kind(pytree.kind_as_arrays(each[0]), problem)


@functools.lru_cache(KINDS_KEPT)
def _check_kind(kind: pytree.Kind, problem: Problem) -> None:
    """Let a policy that is not defined for these shapes say so, once a kind.

    The round of one that is none of this package's, whose tests see it, is traced too.
    """
    policy = kind.shapes()
    if contract.is_foreign(policy):
        shapes.check_policy(policy, problem)
        return
    contexts = jax.ShapeDtypeStruct(problem.contexts_shape, jnp.result_type(float))
    jax.eval_shape(lambda policy, table: policy.init(problem, table), policy, contexts)


def _outline(policy: Policy) -> tuple[Any, list[tuple[int, ...]]]:
    """Return the structure of a policy as it was given, and the shapes of its leaves.

    That is less than its kind (`pytree.kind_of`): 1 and 1.0 are not told apart, for all numbers
    become floats later, and a leaf that is no number is left to the policy's own `check`, which
    names the key.
    """
    return jax.tree.structure(policy), [np.shape(leaf) for leaf in jax.tree.leaves(policy)]
