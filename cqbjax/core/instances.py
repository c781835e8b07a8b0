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
    key: Array, source: Source, arrival_rate: Array, problem: Problem,
    run_length: RunLength | None = None,
) -> Instance:  # fmt: skip
    """Draw the instance of a run.

    Args:
        key: the run's key, `rng.run_key(seed)`.
        source: where queries come from.
        arrival_rate: [] lambda, queries a round.
        problem: shapes.
        run_length: T and T^(-1/2) of the run, if `problem` has a longer, padded horizon; rounds
            after T are not drawn. None: the horizon of `problem` is T.

    Raises:
        ValueError: a round may have several arrivals, and the source does not draw them.
    """
    with rng.limit_draws(run_length):
        return _draw(key, source, arrival_rate, problem)._replace(run_length=run_length)


def _draw(key: Array, source: Source, arrival_rate: Array, problem: Problem) -> Instance:
    rounds = jnp.arange(1, problem.horizon + 1)
    dynamics = None
    if isinstance(source, Scenario):
        dynamics, source = source.draw_dynamics(key, problem), source.source
    uniforms = rng.round_uniforms(key, rounds, rng.Stream.ARRIVAL)
    # Quantities that follow from the rate, such as slackness, are those of one channel.
    rate = arrival_rate if problem.channels == 1 else arrival_rate / problem.channels
    workload = source.draw_workload(key, rate, problem)
    if draws_arrivals(source):
        arrivals = source.draw_arrivals(key, arrival_rate, problem.horizon)
    elif problem.max_arrivals > 1:
        raise ValueError(
            f"max_arrivals={problem.max_arrivals} needs a source with a method `draw_arrivals`"
        )
    else:
        arrivals = uniforms < arrival_rate
    choice = rng.round_uniforms(key, rounds, rng.Stream.CHOICE)
    if problem.channels > 1:
        channel_key = rng.stream_key(rng.round_key(key, 0), rng.Stream.CHANNELS)
        choice = jax.random.uniform(channel_key, (problem.horizon, problem.channels), jnp.float32)
        choice = choice.astype(float)
    return Instance(key, workload, arrivals, choice, dynamics)


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
    prompts, slot = instance.workload.prompts[queue.row], action.slot
    number = (prompts if problem.outcome == "prompt" else queue.arrived)[slot]
    key = rng.stream_key(rng.round_key(instance.key, number), rng.Stream.FIXED_OUTCOME)
    key = jax.random.fold_in(key, action.servers[0])
    return jax.random.uniform(key, (), jnp.float32).astype(float)
