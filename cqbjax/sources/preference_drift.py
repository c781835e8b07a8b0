"""Preferences that change while queries wait: gradually, or in a jump."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax.core.inputs import check_interval
from cqbjax.core.pytree import pytree
from cqbjax.core.types import PreferenceDrift, Problem, Workload, draws_arrivals
from cqbjax.sources.coin import Coin


class SourceWrapper:
    """A wrapper of a source, with the shapes and the uniform service rate of the source within.

    Attributes:
        source: the source within.
    """

    source: Any

    def problem(self, K: int, horizon: int) -> Problem:
        """Return the shapes of the source within."""
        return self.source.problem(K, horizon)

    def uniform_service(self, seeds: np.ndarray, arrival_rate: float, K: int) -> float:
        """Return the uniform service rate of the source within."""
        return float(self.source.uniform_service(seeds, arrival_rate, K))


@pytree
class DriftWrapper(SourceWrapper):
    """A source whose users' preferences change: LLM j comes to have the utilities of LLM j - 1.

    In round t the utility of LLM j is cos(a_t) u_j + sin(a_t) u_(j-1), cyclically in j. This is u_j
    at a_t = 0, and u_(j-1), the utility of the previous LLM, at a_t = pi/2. At both angles
    a query's best departure rate is the same, though other servers reach it, so the load is the
    same. For the synthetic source, theta_j turns towards theta_(j-1). Preferences of waiting
    queries change too.

    Attributes:
        source: where queries come from.
        jump_at: the round from which the angle a_t is larger by pi/2; infinite: no jump.
        quarter: rounds in which the angle a_t grows by pi/2, linearly; infinite: no growth.
    """

    source: Any
    jump_at: Array | float = float("inf")
    quarter: Array | float = float("inf")

    # Serving the query that is most likely to depart now is then not optimal.
    changes = True

    def check(self, seeds: np.ndarray, arrival_rate: float, K: int) -> None:
        """Validate the times and the source within.

        Raises:
            ValueError: in one sentence, naming the key.
        """
        check_interval(self, "[1, inf]", "jump_at", "quarter")
        if draws_arrivals(self.source):
            raise ValueError("drift goes inside: ArrivalWrapper(source=DriftWrapper(...), ...)")
        if getattr(self.source, "changes", False):
            raise ValueError("drift needs a source whose preferences are fixed, and these change")
        servers = self.source.problem(K, 1).num_servers
        if isinstance(self.source, Coin) or servers < 2:
            reason = "a coin has the same for all" if servers > 1 else f"num_servers={servers}"
            raise ValueError(f"drift turns preferences from one LLM to the next, and {reason}")
        self.source.check(seeds, arrival_rate, K)

    def draw_workload(self, key: Array, arrival_rate: Array, problem: Problem) -> Workload:
        """Draw the workload of the source within, and rotate its preferences."""
        workload: Workload = self.source.draw_workload(key, arrival_rate, problem)
        if workload.drift is not None or workload.log is not None:
            raise ValueError("drift needs a source whose users choose by fixed preferences")
        t = jnp.arange(1, problem.horizon + 1)
        angle = jnp.pi / 2 * ((t >= self.jump_at) + (t - 1) / jnp.asarray(self.quarter, float))
        other = jnp.roll(workload.utilities, 1, axis=1)
        return workload._replace(drift=PreferenceDrift(other, jnp.cos(angle), jnp.sin(angle)))
