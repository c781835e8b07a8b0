"""What a run draws before its first round, and no policy can influence."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from cqbjax.core import rng
from cqbjax.core.rng import RunLength
from cqbjax.core.scenario import Dynamics, Scenario
from cqbjax.core.types import Action, Problem, Queue, Source, Workload, draws_arrivals


class Instance(NamedTuple):
    """What does not change during a run.

    Attributes:
        key: the run's key.
        workload: contexts, utilities, arriving rows.
        arrivals: [T] bool A(t); [T] int32, how many arrive, where several may.
        choice_uniforms: [T] the choice uniforms U; [T, c] where several are served at a time.
        dynamics: what users and the service do beside the paper's; None: nothing.
        run_length: T as numbers where this has room for more rounds; None where it has not.
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
        arrival_rate: [] lambda, queries a round.
        problem: shapes.
        until: T as numbers where the problem has room for more rounds: those are not drawn.

    Raises:
        ValueError: several queries may come in a round, and the source does not say when.
    """
    with rng.limit_draws(until):
        return _draw(key, source, arrival_rate, problem)._replace(run_length=until)


def _draw(key: Array, source: Source, arrival_rate: Array, problem: Problem) -> Instance:
    rounds = jnp.arange(1, problem.horizon + 1)
    dynamics = None
    if isinstance(source, Scenario):
        dynamics, source = source.draw_dynamics(key, problem), source.source
    uniforms = rng.round_uniforms(key, rounds, rng.Stream.ARRIVAL)
    # What a source makes of the rate, such as its slackness, is of a place's share of it.
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
    asked, slot = instance.workload.prompts[queue.row], action.slot
    number = (asked if problem.outcome == "prompt" else queue.arrived)[slot]
    own = rng.stream_key(rng.round_key(instance.key, number), rng.Stream.FIXED_OUTCOME)
    own = jax.random.fold_in(own, action.servers[0])
    return jax.random.uniform(own, (), jnp.float32).astype(float)
