"""What a run draws before its first round, and no policy can influence."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from cqbjax.core import rng
from cqbjax.core.rules import Rules
from cqbjax.core.setting import Setting
from cqbjax.core.types import Problem, Source, World, has_own_arrivals


class Instance(NamedTuple):
    """What does not change during a run.

    Attributes:
        key: the run's key.
        world: contexts, utilities, arriving rows.
        arrives: [T] bool A(t); [T] int32, how many arrive, where several may.
        choice: [T] the choice uniforms U; [T, c] where several are served at a time.
        rules: what users and the service do beside the paper's; None: nothing.
    """

    key: Array
    world: World
    arrives: Array
    choice: Array
    rules: Rules | None = None


def draw_instance(key: Array, source: Source, arrival_rate: Array, problem: Problem) -> Instance:
    """Draw everything that no policy can influence.

    Args:
        key: the run's key, `rng.run_key(seed)`.
        source: where queries come from.
        arrival_rate: [] lambda, queries a round.
        problem: shapes.

    Raises:
        ValueError: several queries may come in a round, and the source does not say when.
    """
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
