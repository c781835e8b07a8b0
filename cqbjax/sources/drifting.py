"""Tastes that change while queries wait: slowly, or at a jump."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax.core.inputs import is_number
from cqbjax.core.pytree import pytree
from cqbjax.core.types import PreferenceDrift, Problem, Source, Workload, draws_arrivals
from cqbjax.sources.coin import Coin


@pytree
class Drifting:
    """A source whose users change their tastes: what they thought of LLM j they think of j + 1.

    In round t the utility of LLM j is cos(a_t) u_j + sin(a_t) u_(j-1), cyclically: at a = 0 the
    source's own, at pi/2 those of the LLM before. There the best assortment is another one, and as
    good: the load is what it was. For the synthetic source that is theta_j turning towards
    theta_(j-1). Queries that wait already change with all others.

    Attributes:
        source: where queries come from.
        jump_at: the round from which a jumps to pi/2; infinite: never.
        quarter: rounds in which a grows by pi/2, steadily; infinite: not at all.
    """

    source: Any
    jump_at: Array | float = float("inf")
    quarter: Array | float = float("inf")

    # Who is likeliest to leave now need not be worth serving first.
    changes = True

    def problem(self, K: int, horizon: int) -> Problem:
        """Return the source's shapes."""
        return self._source.problem(K, horizon)

    def check(self, seeds: np.ndarray, arrival_rate: float, K: int) -> None:
        """Refuse what the source refuses, and times that are none.

        Raises:
            ValueError: in one sentence, naming the key.
        """
        for key in ("jump_at", "quarter"):
            value = getattr(self, key)
            if not is_number(value) or not float(value) >= 1:
                raise ValueError(f"{key}={value} must be a number, at least round 1")
        if draws_arrivals(self._source):
            raise ValueError("drift goes inside: Arriving(source=Drifting(source=...), ...)")
        if getattr(self._source, "changes", False):
            raise ValueError("drift is of a source whose tastes stay, and these change already")
        servers = self._source.problem(K, 1).num_servers
        if isinstance(self._source, Coin) or servers < 2:
            alike = "a coin has the same for all" if servers > 1 else f"num_servers={servers}"
            raise ValueError(f"drift turns tastes from one LLM to the next, and {alike}")
        self._source.check(seeds, arrival_rate, K)

    def uniform_service(self, seeds: np.ndarray, arrival_rate: float, K: int) -> float:
        """Return the source's own: uniform assortments do not know who is better."""
        return self._source.uniform_service(seeds, arrival_rate, K)

    def draw_workload(self, key: Array, arrival_rate: Array, problem: Problem) -> Workload:
        """Draw the source's instance, and turn it."""
        world = self._source.draw_workload(key, arrival_rate, problem)
        if world.drift is not None or world.log is not None:
            raise ValueError("drift is of a source whose users choose by tastes that stay")
        t = jnp.arange(1, problem.horizon + 1)
        angle = jnp.pi / 2 * ((t >= self.jump_at) + (t - 1) / jnp.asarray(self.quarter, float))
        other = jnp.roll(world.utilities, 1, axis=1)
        return world._replace(drift=PreferenceDrift(other, jnp.cos(angle), jnp.sin(angle)))

    @property
    def _source(self) -> Source:
        return self.source
