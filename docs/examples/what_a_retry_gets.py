"""What a retry gets
=================

A user who is not satisfied comes back. Should the query get the same LLM again, or a different one?
Here an LLM that failed a query always fails it, which is realistic. You learn how to fix the
outcome per query, and how to set what a policy does after a failure.
"""

import matplotlib.pyplot as plt

import cqbjax
from cqbjax import backend, datasets, policies, summaries

backend.configure()  # use every core; store compiled programs on disk

# %%
# `outcome` sets the level at which success is drawn: per attempt, as in the paper, or per query.
# With `retry="fallback"` ACQB excludes LLMs that this query has already been shown.

source = datasets.dataset_source("paretobandit", "data", pool_size=200, outcome="query")
chosen = {
    "acqb": policies.Acqb(alpha_scale=0.3, c1=0.25),
    "acqb, fallback": policies.Acqb(alpha_scale=0.3, c1=0.25, retry="fallback"),
}
queries = source.queries
data = cqbjax.sweep(chosen, queries, arrival_rate=[0.85], num_seeds=10, horizon=500)
data = data.sel(arrival_rate=0.85)

# %%
# The optimal policy of the paper's scenario is always included. It knows every success probability,
# but does not react to failures.

length = summaries.mean_ci(data.queue_length)
figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
for policy in length.policy.values:
    one = length.sel(policy=policy)
    axes.plot(one["round"], one["mean"], label=policy)
    axes.fill_between(one["round"], one["low"].clip(0.1), one["high"], alpha=0.2)
    mean, low, high = (float(one[part][-1]) for part in ("mean", "low", "high"))
    print(f"{policy:14} {mean:5.1f} queries at the end [{low:.1f}, {high:.1f}]")
axes.set(xlabel="Round", ylabel="Queries waiting", xlim=(0, 500))
axes.set(yscale="log", ylim=(0.5, None))
axes.legend()
plt.show()

# %%
# A retry should get a different LLM: ACQB's queue then stays short, while the paper's optimal
# policy soon asks the same LLM about the same query forever.
