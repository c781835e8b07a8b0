"""User-defined user and service dynamics
======================================

What happens if all LLMs but one are switched off at night, and users whose query fails at night
return in the morning? Service dynamics and user dynamics are one small class each. You learn how to
write and check them, and how to count the users who are not in the queue.
"""

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import cqbjax
from cqbjax import (
    PAPER_REACTION,
    ServiceModel,
    UserModel,
    backend,
    policies,
    pytree,
    sources,
    static,
)
from cqbjax.testing import check_service, check_users

backend.configure()  # use every core; store compiled programs on disk

# %%
# `draw` draws all random numbers before the first round, so that every policy meets the same draws.
# The dynamics here are not random: everything follows from the time of day.


@pytree
class Nights(ServiceModel):
    """In the second half of each day only the first LLM answers."""

    day: int = static(default=100)  # rounds; static, because it selects code

    def draw(self, key, problem):
        """Return which LLMs answer in each round: [T, N]."""
        awake = jnp.arange(problem.horizon) % self.day < self.day // 2
        return awake[:, None] | (jnp.arange(problem.num_servers) == 0)

    def available(self, drawn):
        """Return which LLMs answer in one round: [N]."""
        return drawn


@pytree
class Sleepers(UserModel):
    """A user whose query fails at night comes back in the morning."""

    day: int = static(default=100)

    def draw(self, key, problem):
        """Return, for each round, after how many rounds a query that fails then returns: [T, c]."""
        hour = jnp.arange(problem.horizon) % self.day
        delay = jnp.where(hour < self.day // 2, 1, self.day - hour)
        return jnp.broadcast_to(delay[:, None], (problem.horizon, problem.channels))

    def react(self, drawn, attempts):
        """Stay away for that many rounds."""
        return PAPER_REACTION._replace(return_delay=drawn)


check_service(Nights())
check_users(Sleepers())

# %%
# A scenario is a source with user and service dynamics.

data = cqbjax.sweep(
    {"acqb": policies.Acqb(alpha_scale=0.2, c1=0.25)},
    sources.Synthetic(),
    arrival_rate=[0.5],
    num_seeds=50,
    horizon=500,
    users=[Sleepers()],
    service=[Nights()],
    record=["away"],
)
means = data.sel(arrival_rate=0.5).mean("seed")

# %%
# Nights are grey.

figure, axes = plt.subplots(figsize=(7, 3.5), layout="constrained")
rounds = means["round"].values
acqb, optimal = means.sel(policy="acqb"), means.sel(policy="optimal")
labels = ["acqb: waiting", "acqb: away"]
axes.stackplot(rounds, acqb.queue_length, acqb.away, labels=labels, alpha=0.7)
axes.plot(rounds, optimal.queue_length + optimal.away, "k:", label="optimal: both")
for evening in np.arange(50, 500, 100):
    axes.axvspan(evening, evening + 50, color="grey", alpha=0.2, linewidth=0)
axes.set(xlabel="Round", ylabel="Queries", xlim=(0, 500))
axes.legend(loc="upper left", fontsize="small")
plt.show()

# %%
# Failures accumulate at night, and in the morning all these users return at once. The day ends
# before ACQB has satisfied them.
