"""The observation of a policy at the beginning of a round, and the true utilities."""

import jax.numpy as jnp
from jax import Array

from cqbjax.core.carry import Carry
from cqbjax.core.instances import Instance
from cqbjax.core.types import DOWN_UTILITY, LONG_WAIT, Observation, Policy, Problem, read_needs


def observe(
    policy: Policy, problem: Problem, instance: Instance, carry: Carry, round_: Array
) -> Observation:
    """Return the policy's observation at the beginning of a round."""
    workload, queue, dynamics = instance.workload, carry.queue, instance.dynamics
    slots = carry.slot_features
    features = workload.contexts[queue.row] if slots is None else jnp.moveaxis(slots, -1, 0)
    if problem.age_column is not None:
        features = _grow_age_column(features, problem.age_column, round_ - queue.arrived)
    informed = read_needs(policy).true_utilities
    seen = Observation(
        problem=problem,
        round=round_,
        queue=queue,
        features=features,
        arrived=carry.arrived,
        newest=carry.newest,
        prompts=workload.prompts[queue.row],
        utilities=true_utilities(instance, queue.row, round_) if informed else None,
        available=None if dynamics is None else dynamics.combine("available", round_),
        run_length=instance.run_length,
    )
    if carry.dynamics is None:
        return seen
    return hide_slots(seen, carry.dynamics.return_round > round_)


def hide_slots(seen: Observation, hidden: Array) -> Observation:
    """Hide the queries of slots [C] that are in the retrial orbit or in service."""
    queue = seen.queue._replace(arrived=jnp.where(hidden, 0, seen.queue.arrived))
    return seen._replace(queue=queue, arrived=seen.arrived & ~hidden[seen.newest])


def true_utilities(instance: Instance, rows: Array, round_: Array) -> Array:
    """Return utilities of table rows [...] in a round: [..., N], `DOWN_UTILITY` of down servers."""
    drift, dynamics = instance.workload.drift, instance.dynamics
    utilities = instance.workload.utilities[rows]
    if drift is not None:
        cos, sin = drift.cos[round_ - 1], drift.sin[round_ - 1]
        utilities = cos * utilities + sin * drift.other[rows]
    available = None if dynamics is None else dynamics.combine("available", round_)
    return utilities if available is None else jnp.where(available, utilities, DOWN_UTILITY)


def _grow_age_column(features: Array, column: int, waited: Array) -> Array:
    """Multiply a feature column by the age factor of `waited` [C] rounds (`Problem`)."""
    rounds = jnp.maximum(waited, 0).astype(features.dtype)
    age = jnp.minimum(jnp.log1p(rounds) / jnp.log1p(LONG_WAIT), 1.0)
    here = jnp.arange(features.shape[-1]) == column
    return features * jnp.where(here, jnp.expand_dims(age, tuple(range(1, features.ndim))), 1.0)
