"""A policy of your own
====================

How little does a policy take?
This one shows the LLM that satisfied the last user, and after a failure the next one.
You learn how to write a policy, hold it to the contract, and run it beside others.
"""

import jax.numpy as jnp
import matplotlib.pyplot as plt

import cqbjax
from cqbjax import backend, datasets, policies, summaries
from cqbjax.core import queueing, rng
from cqbjax.core.pytree import pytree
from cqbjax.core.types import Action
from cqbjax.testing import check_policy

backend.configure()  # every core, and compiled programs kept on disk

# %%
# A policy has a state and three methods, written for one run.
# The state here is the number of the LLM whose turn it is.


@pytree
class StayOrShift:
    """Stay with an LLM while it satisfies, and shift to the next one when it fails."""

    informed = False  # True would show it the true utilities

    def init(self, problem, contexts):
        """Begin with the first LLM."""
        return jnp.zeros((), jnp.int32)

    def select(self, key, state, observation):
        """Serve the oldest query by the LLM whose turn it is, or the K from it on."""
        problem = observation.problem
        uniform = rng.uniform(key, rng.Stream.QUERY)
        slot = queueing.pick("oldest", observation.queue, uniform)
        servers = (state + jnp.arange(problem.assortment_size)) % problem.num_servers
        return Action(slot, jnp.sort(servers), jnp.bool_(False))

    def update(self, state, observation, action, feedback):
        """Shift if no answer was chosen; of an empty queue nothing is learnt."""
        problem = observation.problem
        failed = feedback.valid & (feedback.choice == problem.assortment_size)
        return jnp.where(failed, (state + 1) % problem.num_servers, state)


check_policy(StayOrShift(), uncompiled=False)

# %%
# It runs on ParetoBandit's prompts beside Thompson sampling, which learns how often each LLM
# satisfies, and serves the oldest query too.

queries = datasets.dataset_source("paretobandit", "data", pool_size=200).queries
chosen = {
    "stay_or_shift": StayOrShift(),
    "thompson": policies.ByLlm(index="thompson"),
}
data = cqbjax.sweep(chosen, queries, arrival_rates=[0.8], seeds=50, horizon=500)
data = data.sel(arrival_rate=0.8)

# %%
# Means over seeds, and the difference that can be told seed by seed.

figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
length = summaries.mean_ci(data.queue_length)
for policy in chosen:
    one = length.sel(policy=policy)
    axes.plot(one["round"], one["mean"], label=policy)
    axes.fill_between(one["round"], one["low"], one["high"], alpha=0.2)
    print(f"{policy:13} {float(one['mean'][-1]):4.1f} queries wait at the end")
axes.set(xlabel="Round", ylabel="Queries waiting", xlim=(0, 500))
axes.set_ylim(0, None)
axes.legend()
means = data.mean("round")
more = summaries.paired_difference(means, "queue_length", "thompson", "stay_or_shift")
mean, low, high = (float(more[part]) for part in ("mean", "low", "high"))
print(f"thompson has {mean:.1f} more, averaged over rounds [{low:.1f}, {high:.1f}]")
plt.show()

# %%
# Stay or shift has the shorter queue: the query that failed is still the oldest, so it gets another
# LLM at once, where Thompson sampling mostly asks the same one again.
