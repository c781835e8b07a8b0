"""What a sweep refuses before anything compiles, each in one sentence that names the key."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cqbjax.core import contract, mnl, pytree, shapes
from cqbjax.core.labels import OPTIMAL
from cqbjax.core.recorders import ALWAYS, NAMED, Recorder
from cqbjax.core.rules import Users
from cqbjax.core.setting import alone, kinds_of
from cqbjax.core.types import Policy, Problem, Source
from cqbjax.policies.baselines import Optimal
from cqbjax.sweeping.parts import Capacity, PerSeed

KINDS_KEPT = 256
# Names that a stored result has beside its recorders'.
TAKEN = (
    "policy", "arrival_rate", "seed", "round", "point", "optimal_queue_length",
    "seconds_per_round", "compile_seconds", "gap", "throughput",
)  # fmt: skip


def check_sweep(
    policies: Mapping[str, Policy | PerSeed],
    source: Source,
    arrival_rates: Sequence[float],
    seeds: np.ndarray,
    horizon: int,
    assortment_size: int,
    capacity: Capacity,
) -> Problem:
    """Refuse what cannot run, in one sentence that names the key, before anything compiles.

    Returns:
        The problem's shapes.

    Raises:
        ValueError: for the first key that is out of range.
        ContractError: for a policy or source, none of this package's, that breaks the contract.
    """
    _check_runs(seeds, horizon, capacity)
    with contract.naming("source"):
        contract.check_source_class(source)
    _check_rates(arrival_rates, source.problem(1, horizon).arrivals_a_round)
    if not policies:
        raise ValueError("policies must name at least one policy")
    with_yardstick(policies)
    _check_assortments(source.problem(1, horizon).num_servers, assortment_size)
    for rate in arrival_rates:
        source.check(seeds, rate, assortment_size)
    problem = source.problem(assortment_size, horizon)
    _check_source(source, problem)
    for label, policy in policies.items():
        _check_policy(label, policy, seeds, problem)
    return problem


def _check_source(source: Source, problem: Problem) -> None:
    """Trace what a source and kinds that are none of this package's draw."""
    inside = alone(source)
    own = contract.foreign(inside)
    if own is not None:
        with contract.naming(f"source {type(own).__name__}"):
            shapes.check_source(_shapes(inside), problem)
    for kind in filter(contract.is_foreign, kinds_of(source)):
        users = isinstance(kind, Users)
        with contract.naming(f"{'users' if users else 'service'} {type(kind).__name__}"):
            (shapes.check_users if users else shapes.check_service)(_shapes(kind), problem)


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
    if isinstance(more, str):
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


def check_batch(chunk: int | None, memory_gb: float | None) -> None:
    """Refuse a batch that cannot be.

    Raises:
        ValueError: naming chunk or memory_gb.
    """
    if chunk is not None and chunk < 1:
        raise ValueError(f"chunk={chunk} must be at least 1 run, or None")
    if memory_gb is not None and not 0 < memory_gb < float("inf"):
        raise ValueError(f"memory_gb={memory_gb} must be a number above 0, or None")


def _check_runs(seeds: np.ndarray, horizon: int, capacity: Capacity) -> None:
    if horizon < 1:
        raise ValueError(f"horizon={horizon} must be at least 1 round")
    if len(seeds) < 1:
        raise ValueError("num_seeds must be at least 1")
    if len(set(seeds.tolist())) < len(seeds) or seeds.min() < 0:
        raise ValueError("seeds must be distinct and not negative")
    if seeds.max() >= 2**31:
        raise ValueError("seeds must be below 2^31")
    if capacity != "auto" and not isinstance(capacity, int | np.integer):
        raise ValueError(f"capacity={capacity} must be `auto` or a whole number of slots")
    if capacity != "auto" and capacity < 1:
        raise ValueError(f"capacity={capacity} must be `auto` or at least 1 slot")


def _check_rates(arrival_rates: Sequence[float], most: int) -> None:
    if not arrival_rates:
        raise ValueError("arrival_rate must name at least one rate")
    if len(set(arrival_rates)) < len(arrival_rates):
        raise ValueError("arrival_rate must name distinct rates")
    for rate in arrival_rates:
        if not 0.0 <= rate <= most:
            raise ValueError(f"arrival_rate={rate:g} must lie in [0, {most}] queries a round")


def _check_assortments(num_servers: int, assortment_size: int) -> None:
    if not 1 <= assortment_size <= num_servers:
        raise ValueError(f"K={assortment_size} must lie in 1..N, and N={num_servers} servers")
    if mnl.num_assortments(num_servers, assortment_size) >= 2**31:
        raise ValueError(
            f"K={assortment_size} of N={num_servers} servers gives 2^31 assortments or more, too "
            "many for the round-robin; lower K"
        )


def _check_policy(
    label: str, policy: Policy | PerSeed, seeds: np.ndarray, problem: Problem
) -> None:
    each = policy.policies if isinstance(policy, PerSeed) else (policy,)
    with contract.naming(f"policy {label}"):
        contract.check_class(each[0])
    if isinstance(policy, PerSeed) and len(each) != len(seeds):
        raise ValueError(f"policy {label} is for {len(each)} seeds, and the sweep has {len(seeds)}")
    for seed, one in zip(seeds, each, strict=False):
        if _outline(one) != _outline(each[0]):
            raise ValueError(
                f"policy {label} of seed {seed} must have the structure and the shapes of that "
                f"of seed {seeds[0]}"
            )
        if hasattr(one, "check"):
            one.check(problem)
    with contract.naming(f"policy {label}"):
        _check_kind(pytree.kind_of(pytree.arrays(each[0])), problem)


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
