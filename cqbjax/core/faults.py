"""What a run draws before its first round, held against the contract: numbers, not shapes.

Of sources and of kinds of users and of service that are none of this package's (`core.contract`).
"""

import functools
import itertools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax.core.contract import foreign, is_foreign
from cqbjax.core.instances import Instance
from cqbjax.core.rules import Rules, Service, Users
from cqbjax.core.setting import alone
from cqbjax.core.types import Problem
from cqbjax.core.world import World

# What an instance must be, as `instance_faults` counts.
INSTANCE = (
    "contexts must be finite numbers",
    "utilities must be finite numbers",
    "arrival_rows must be rows of the contexts in every round with an arrival",
    "prompts must be numbers of the dataset's prompts, or of the rows without one",
    "arrives must lie in 0 .. arrivals_a_round",
    "logged.next must be rows of the contexts",
)
# What kinds of users and of service must draw and say, as `kind_faults` counts.
KINDS = (
    "draw must return numbers, and some are NaN",
    "bears must say at least 1 round",
    "reacts must say that a query is away for at least 1 round",
    "takes must say at least 1 round",
    "prices must be finite and not negative",
)
# Attempts after which reactions are looked at: the first ones, and a late one.
ATTEMPTS = (1, 2, 3, 10, 100)


@functools.partial(jax.jit, static_argnums=0)
def instance_faults(problem: Problem, world: World, arrives: Array) -> Array:
    """Tell what is wrong with the instances of a batch: [S], 0 or the place in `INSTANCE` from 1.

    Args:
        problem: the shapes.
        world: leaves [S, ...].
        arrives: [S, T] A(t), or how many arrive.
    """

    def one(world: World, arrives: Array) -> Array:
        prompts, most = world.prompts, problem.arrivals_a_round
        rows = world.arrival_rows.reshape(-1, most)
        following = jnp.zeros(1, int) if world.logged is None else world.logged.next
        coming = jnp.arange(most) < arrives[:, None]
        return _first(
            ~jnp.all(jnp.isfinite(world.contexts)),
            ~jnp.all(jnp.isfinite(world.utilities)),
            jnp.any(coming & ((rows < 0) | (rows >= problem.num_rows))),
            jnp.any((prompts < 0) | (prompts >= (problem.num_prompts or problem.num_rows))),
            jnp.any((arrives < 0) | (arrives > most)),
            jnp.any((following < 0) | (following >= problem.num_rows)),
        )

    return jax.vmap(one)(world, arrives)


@functools.partial(jax.jit, static_argnums=0)
def kind_faults(problem: Problem, rules: Rules, arrives: Array) -> Array:
    """Tell what is wrong with kinds, and what they drew, in a batch: [S, n].

    Of each kind of users, and then of service, 0 or the place in `KINDS` from 1.

    Args:
        problem: the shapes.
        rules: leaves [S, ...].
        arrives: [S, T] A(t).
    """

    def one(rules: Rules, _: Array) -> Array:
        users = zip(rules.users, rules.of_users, strict=True)
        service = zip(rules.service, rules.of_service, strict=True)
        return jnp.stack([
            *(_of_users(kind, drawn, rules.patience) for kind, drawn in users),
            *(_of_service(problem, kind, drawn) for kind, drawn in service),
        ])  # fmt: skip

    return jax.vmap(one)(rules, arrives)


def _of_users(users: Users, drawn: Any, patience: Array | None) -> Array:
    """Tell what is wrong with a kind of users: []."""

    def away(mine: Any) -> Array:
        return jnp.stack([users.reacts(mine, jnp.int32(n)).away for n in ATTEMPTS])

    hasty = jnp.bool_(False)
    if patience is not None and type(users).bears is not Users.bears:
        hasty = jnp.any(patience < 1)
    return _first(_has_nan(drawn), hasty, jnp.any(_each(away, drawn, 2) < 1))


def _of_service(problem: Problem, service: Service, drawn: Any) -> Array:
    """Tell what is wrong with a kind of service: []."""
    servers = jnp.arange(problem.num_servers, dtype=jnp.int32)
    some = servers[: problem.assortment_size], servers[-problem.assortment_size :]
    prompts = (0, (problem.num_prompts or problem.num_rows) - 1)
    places = range(problem.places)

    def takes(mine: Any) -> Array:
        asked = itertools.product(map(jnp.int32, places), map(jnp.int32, prompts), some)
        said = [service.takes(mine, *one) for one in asked]
        return jnp.stack([jnp.int32(1) if rounds is None else rounds for rounds in said])

    def prices(mine: Any) -> Array:
        said = service.prices(mine)
        return jnp.ones(1) if said is None else said

    factors, fine = _each(prices, drawn, 1), jnp.bool_(False)
    wrong = ~jnp.all(jnp.isfinite(factors) & (factors >= 0))
    return _first(_has_nan(drawn), fine, fine, jnp.any(_each(takes, drawn, 1) < 1), wrong)


def _each(say: Any, drawn: Any, axes: int) -> Array:
    """Ask of everything that was drawn, along its first axes."""
    for _ in range(axes if jax.tree.leaves(drawn) else 0):
        say = jax.vmap(say)
    said: Array = say(drawn)
    return said


def _has_nan(drawn: Any) -> Array:
    """Tell whether numbers are missing: [] bool."""
    reals = [leaf for leaf in jax.tree.leaves(drawn) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return jnp.any(jnp.stack([jnp.any(jnp.isnan(leaf)) for leaf in reals] or [jnp.bool_(False)]))


def _first(*wrong: Array) -> Array:
    """Return the place of the first that is wrong, from 1; 0 for none: []."""
    return jnp.select(wrong, range(1, len(wrong) + 1), 0)


def of_draws(
    source: Any, problem: Problem, instance: Instance
) -> Iterator[tuple[str, tuple[str, ...], np.ndarray]]:
    """Look at what a batch of runs drew, of a source and of kinds that are none of this package's.

    Args:
        source: of the runs.
        problem: the shapes.
        instance: leaves [S, ...].

    Yields:
        Whose it is, the sentences that there are, and of each run 0 or the place of one from 1.
    """
    rules, own = instance.rules, foreign(alone(source))
    if own is not None:
        faults = instance_faults(problem, instance.world, instance.arrives)
        yield f"source {type(own).__name__}", INSTANCE, np.asarray(faults)
    if rules is None or not any(map(is_foreign, (*rules.users, *rules.service))):
        return
    wrong = np.asarray(kind_faults(problem, rules, instance.arrives))
    for place, kind in enumerate((*rules.users, *rules.service)):
        group = "users" if place < len(rules.users) else "service"
        if is_foreign(kind):
            yield f"{group} {type(kind).__name__}", KINDS, wrong[:, place]
