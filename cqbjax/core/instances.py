"""What a run draws before its first round, and no policy can influence."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from cqbjax.core import extent, rng
from cqbjax.core.extent import Extent
from cqbjax.core.rules import Rules
from cqbjax.core.setting import Setting
from cqbjax.core.types import Action, Problem, Queue, Source, has_own_arrivals
from cqbjax.core.world import World


class Instance(NamedTuple):
    """What does not change during a run.

    Attributes:
        key: the run's key.
        world: contexts, utilities, arriving rows.
        arrives: [T] bool A(t); [T] int32, how many arrive, where several may.
        choice: [T] the choice uniforms U; [T, c] where several are served at a time.
        rules: what users and the service do beside the paper's; None: nothing.
        extent: T as numbers where this has room for more rounds; None where it has not.
    """

    key: Array
    world: World
    arrives: Array
    choice: Array
    rules: Rules | None = None
    extent: Extent | None = None


def draw_instance(
    key: Array, source: Source, arrival_rate: Array, problem: Problem, until: Extent | None = None
) -> Instance:
    """Draw everything that no policy can influence.

    Args:
        key: the run's key, `rng.run_key(seed)`.
        source: where queries come from.
        arrival_rate: [] lambda, queries a round.
        problem: shapes.
        until: T as numbers where the problem has room for more rounds: those are not drawn.

    Raises:
        ValueError: several queries may come in a round, and the source does not say when.
    """
    with extent.drawing(until):
        return _drawn(key, source, arrival_rate, problem)._replace(extent=until)


def _drawn(key: Array, source: Source, arrival_rate: Array, problem: Problem) -> Instance:
    rounds = jnp.arange(1, problem.horizon + 1)
    rules = None
    if isinstance(source, Setting):
        rules, source = source.rules(key, problem), source.source
    uniforms = rng.round_uniforms(key, rounds, rng.Stream.ARRIVAL)
    # What a source makes of the rate, such as its slackness, is of a place's share of it.
    share = arrival_rate if problem.places == 1 else arrival_rate / problem.places
    world = source.world(key, share, problem)
    if has_own_arrivals(source):
        arrives = source.arrives(key, arrival_rate, problem.horizon)
    elif problem.arrivals_a_round > 1:
        most = problem.arrivals_a_round
        raise ValueError(f"arrivals_a_round={most} needs a source with a method `arrives`")
    else:
        arrives = uniforms < arrival_rate
    choice = rng.round_uniforms(key, rounds, rng.Stream.CHOICE)
    if problem.places > 1:
        more = rng.stream_key(rng.round_key(key, 0), rng.Stream.PLACES)
        choice = jax.random.uniform(more, (problem.horizon, problem.places), jnp.float32)
        choice = choice.astype(float)
    return Instance(key, world, arrives, choice, rules)


def choice_uniform(
    problem: Problem, instance: Instance, queue: Queue, action: Action, drawn: Array
) -> Array:
    """Return the uniform of an attempt's choice: its round's, or the one that is kept.

    A kept one is at the address of seed, server, and prompt or round of arrival, so that a server
    that is asked again is judged as before, and all policies meet the same verdicts.

    Args:
        problem: says by `outcome` what a verdict is drawn for.
        instance: the run's fixed part.
        queue: before the attempt.
        action: which query, which server.
        drawn: [] the round's uniform.
    """
    if problem.outcome == "attempt":
        return drawn
    asked, slot = instance.world.prompts[queue.row], action.slot
    number = (asked if problem.outcome == "prompt" else queue.arrived)[slot]
    own = rng.stream_key(rng.round_key(instance.key, number), rng.Stream.KEPT)
    own = jax.random.fold_in(own, action.servers[0])
    return jax.random.uniform(own, (), jnp.float32).astype(float)
