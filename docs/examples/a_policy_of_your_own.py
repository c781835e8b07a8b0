"""A user-defined policy
=====================

How little code does a policy need? The policy here shows the LLM that satisfied the last user, and
switches to the next LLM after a failure. You learn how to write a policy, check it, and compare it
with others.
"""

import jax.numpy as jnp
import matplotlib.pyplot as plt

import cqbjax
from cqbjax import Action, backend, datasets, policies, pytree, queueing, rng, summaries
from cqbjax.testing import check_policy

backend.configure()  # use every core; store compiled programs on disk

# %%
# A policy has a state and three methods, written for one run. The state here is the number of the
# current LLM.


@pytree
class StayOrShift:
    """Keep an LLM while it satisfies, and switch to the next LLM after a failure."""

    def init(self, problem, contexts):
        """Start with the first LLM."""
        return jnp.zeros((), jnp.int32)

    def select(self, key, state, observation):
        """Serve the oldest query with the current LLM and, if K > 1, those after it."""
        problem = observation.problem
        uniform = rng.uniform(key, rng.Stream.QUERY)
        slot = queueing.pick("oldest", observation.queue, uniform)
        servers = (state + jnp.arange(problem.assortment_size)) % problem.num_servers
        return Action(slot, jnp.sort(servers), jnp.bool_(False))

    def update(self, state, observation, action, feedback):
        """Switch if no answer was chosen; ignore rounds with an empty queue."""
        problem = observation.problem
        failed = feedback.valid & (feedback.choice == problem.assortment_size)
        return jnp.where(failed, (state + 1) % problem.num_servers, state)


check_policy(StayOrShift())

# %%
# The policy runs on ParetoBandit's prompts, next to Thompson sampling. Thompson sampling learns how
# often each LLM satisfies, and also serves the oldest query.

queries = datasets.dataset_source("paretobandit", "data", pool_size=200).queries
chosen = {
    "stay_or_shift": StayOrShift(),
    "thompson": policies.LlmRanking(index="thompson"),
}
data = cqbjax.sweep(chosen, queries, arrival_rate=[0.8], num_seeds=50, horizon=500)
data = data.sel(arrival_rate=0.8)

# %%
# Plot means over seeds, and print the difference paired by seed.

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
# Stay-or-shift has the shorter queue. A query that failed is still the oldest, so it gets another
# LLM at once, while Thompson sampling mostly asks the same LLM again.
