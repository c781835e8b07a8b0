"""A world of your own
===================

What if all LLMs but one are switched off at night, and users sleep over a failure?
A kind of service and a kind of users are one small class each.
You learn how to write and check them, and how to count those whom the queue does not hold.
"""

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import cqbjax
from cqbjax import backend, policies, sources
from cqbjax.core.pytree import pytree, static
from cqbjax.core.rules import STAYS, Service, Users
from cqbjax.testing import check_service, check_users

backend.configure()  # every core, and compiled programs kept on disk

# %%
# `draw` draws all chance before the first round, so that every policy meets the same.
# There is none here: what is drawn follows from the hour alone.


@pytree
class Nights(Service):
    """In the second half of each day only the first LLM answers."""

    day: int = static(default=100)  # rounds; it fixes code, and is declared static

    def draw(self, key, problem):
        """Return which LLMs answer in each round: [T, N]."""
        awake = jnp.arange(problem.horizon) % self.day < self.day // 2
        return awake[:, None] | (jnp.arange(problem.num_servers) == 0)

    def available(self, drawn):
        """Return the round's row."""
        return drawn


@pytree
class Sleepers(Users):
    """A user whose query fails at night comes back in the morning."""

    day: int = static(default=100)

    def draw(self, key, problem):
        """Return for how many rounds who fails in a round is away: [T, c]."""
        hour = jnp.arange(problem.horizon) % self.day
        away = jnp.where(hour < self.day // 2, 1, self.day - hour)
        return jnp.broadcast_to(away[:, None], (problem.horizon, problem.places))

    def reacts(self, drawn, attempts):
        """Be away for so long."""
        return STAYS._replace(away=drawn)


check_service(Nights())
check_users(Sleepers())

# %%
# A world is a source with users and a service.

data = cqbjax.sweep(
    {"acqb": policies.Acqb(alpha_scale=0.2, c1=0.25)},
    sources.Synthetic(),
    arrival_rates=[0.5],
    seeds=50,
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
# At night failures pile up, in the morning all of them come back at once, and the day is over
# before ACQB has answered them.
