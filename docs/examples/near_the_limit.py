"""Near the limit of capacity
==========================

How long is the queue if the service can serve only slightly more queries than arrive? *Slackness*
measures the spare capacity: for each query, the success probability of its best LLM exceeds the
arrival rate by at least this number. You learn how to vary a number of the source without
recompiling.
"""

import matplotlib.pyplot as plt
import xarray as xr

import cqbjax
from cqbjax import backend, policies, sources, summaries

backend.configure()  # use every core; store compiled programs on disk

# %%
# Slackness is a numeric field of the source, so all five sweeps share their compiled programs. The
# optimal policy, which knows the true utilities, is always included.

chosen = {"acqb": policies.Acqb(alpha_scale=0.2, c1=0.25)}
slackness = [0.1, 0.05, 0.02, 0.01, 0.005]
lengths = []
for one in slackness:
    source = sources.Synthetic(slackness=one)
    data = cqbjax.sweep(chosen, source, arrival_rate=[0.7], num_seeds=50, horizon=500)
    lengths.append(data.queue_length.sel(arrival_rate=0.7))

# %%
# Average the queue length of a run over its rounds, and then over seeds.

length = xr.concat(lengths, xr.Variable("slackness", slackness))
means = summaries.mean_ci(length.mean("round"))
figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
print("slackness", *(f"{one:6g}" for one in slackness))
for policy in ("acqb", "optimal"):
    one = means.sel(policy=policy)
    axes.plot(slackness, one["mean"], "o-", label=policy)
    axes.fill_between(slackness, one["low"], one["high"], alpha=0.2)
    print(f"{policy:9}", *(f"{mean:6.1f}" for mean in one["mean"].values))
axes.set(xlabel="Slackness", ylabel="Queries waiting, mean over rounds", ylim=(0, None))
axes.set(xscale="log", xlim=(max(slackness), min(slackness)))
axes.set_xticks(slackness, [f"{one:g}" for one in slackness])
axes.minorticks_off()
axes.legend()
plt.show()

# %%
# With a twentieth of the slackness, the mean queue grows by one query under the optimal policy, and
# by seven under ACQB: the queue that builds up while ACQB learns takes longer and longer to clear.
