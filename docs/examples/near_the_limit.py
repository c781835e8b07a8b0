"""Near the limit of what can be served
====================================

How long is the queue when hardly more can be served than what comes?
*Slackness* says how much room there is: each query's chance with its best LLM exceeds the arrival
rate by at least so much.
You learn how to vary a number of the world without compiling anything again.
"""

import matplotlib.pyplot as plt
import xarray as xr

import cqbjax
from cqbjax import backend, policies, sources, summaries

backend.configure()  # every core, and compiled programs kept on disk

# %%
# Slackness is a number of the source, so all five sweeps share their compiled programs.
# The optimal policy, which knows the true utilities, runs in each without being named.

chosen = {"acqb": policies.Acqb(alpha_scale=0.2, c1=0.25)}
slackness = [0.1, 0.05, 0.02, 0.01, 0.005]
lengths = []
for one in slackness:
    source = sources.Synthetic(slackness=one)
    data = cqbjax.sweep(chosen, source, arrival_rates=[0.7], seeds=50, horizon=500)
    lengths.append(data.queue_length.sel(arrival_rate=0.7))

# %%
# A run's queue length is averaged over its rounds, and then over seeds.

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
# With a twentieth of the slackness one query more waits on the optimal policy, and seven more on
# ACQB: what is lost while it learns is made up for ever more slowly.
