"""The part of a run that is drawn before its first round, so that no policy can influence it."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from cqbjax.core import rng
from cqbjax.core.rng import RunLength
from cqbjax.core.scenario import Dynamics, Scenario
from cqbjax.core.types import Action, Problem, Queue, Source, Workload, draws_arrivals


class Instance(NamedTuple):
    """The part of a run that is fixed before round 1.

    Attributes:
        key: the run's key.
        workload: contexts, utilities, arriving rows.
        arrivals: [T] bool A(t); if several queries may arrive per round, [T] int32, their number.
        choice_uniforms: [T] the choice uniforms U; with c > 1 channels [T, c].
        dynamics: user and service dynamics that differ from the paper's, or None.
        run_length: T and T^(-1/2) of this run if the arrays were drawn for a longer horizon, else
            None.
    """

    key: Array
    workload: Workload
    arrivals: Array
    choice_uniforms: Array
    dynamics: Dynamics | None = None
    run_length: RunLength | None = None


def draw_instance(
    key: Array,
    source: Source,
    arrival_rate: Array,
    problem: Problem,
    until: RunLength | None = None,
) -> Instance:
    """Draw everything that no policy can influence.

    Args:
        key: the run's key, `rng.run_key(seed)`.
        source: where queries come from.
        arrival_rate: [] lambda, queries per round.
        problem: the static settings.
        until: T and T^(-1/2) of this run if `problem` has a longer horizon. Most of the later
            rounds are then not drawn.

    Raises:
        ValueError: several queries may arrive per round, and the source draws no arrivals.
    """
    with rng.limit_draws(until):
        return _draw(key, source, arrival_rate, problem)._replace(run_length=until)


def _draw(key: Array, source: Source, arrival_rate: Array, problem: Problem) -> Instance:
    rounds = jnp.arange(1, problem.horizon + 1)
    dynamics = None
    if isinstance(source, Scenario):
        dynamics, source = source.draw_dynamics(key, problem), source.source
    uniforms = rng.round_uniforms(key, rounds, rng.Stream.ARRIVAL)
    # A source uses the rate of one channel, for example for its slackness.
    share = arrival_rate if problem.channels == 1 else arrival_rate / problem.channels
    workload = source.draw_workload(key, share, problem)
    if draws_arrivals(source):
        arrives = source.draw_arrivals(key, arrival_rate, problem.horizon)
    elif problem.max_arrivals > 1:
        most = problem.max_arrivals
        raise ValueError(f"max_arrivals={most} needs a source with a method `draw_arrivals`")
    else:
        arrives = uniforms < arrival_rate
    choice = rng.round_uniforms(key, rounds, rng.Stream.CHOICE)
    if problem.channels > 1:
        more = rng.stream_key(rng.round_key(key, 0), rng.Stream.CHANNELS)
        choice = jax.random.uniform(more, (problem.horizon, problem.channels), jnp.float32)
        choice = choice.astype(float)
    return Instance(key, workload, arrives, choice, dynamics)


def choice_uniform(
    problem: Problem, instance: Instance, queue: Queue, action: Action, drawn: Array
) -> Array:
    """Return the uniform of an attempt's choice.

    With `problem.outcome` "attempt" this is the round's uniform. Otherwise it is determined by
    seed, server, and prompt (or round of arrival), so that a server that is asked again succeeds or
    fails as before, and all policies meet the same outcomes.

    Args:
        problem: the static settings.
        instance: the part of the run that is fixed before round 1.
        queue: the queue before the attempt.
        action: the query's slot and the server.
        drawn: [] the round's uniform.
    """
    if problem.outcome == "attempt":
        return drawn
    asked, slot = instance.workload.prompts[queue.row], action.slot
    number = (asked if problem.outcome == "prompt" else queue.arrived)[slot]
    own = rng.stream_key(rng.round_key(instance.key, number), rng.Stream.FIXED_OUTCOME)
    own = jax.random.fold_in(own, action.servers[0])
    return jax.random.uniform(own, (), jnp.float32).astype(float)
