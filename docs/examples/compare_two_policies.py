"""Compare two policies
====================

Does it matter which query is served first?
ACQB serves the one that an LLM is likeliest to satisfy, by an optimistic guess.
The other policy here is ACQB in all but that: it serves the oldest query.
You learn how to run both on the same draws, and how to tell how sure their difference is.
"""

import matplotlib.pyplot as plt

import cqbjax
from cqbjax import backend, policies, sources, summaries

backend.configure()  # every core, and compiled programs kept on disk

# %%
# A policy is an object, and its settings are its fields.
# These two differ in one word; `alpha_scale` multiplies the confidence radius.
# With each of 50 seeds both meet the same arrivals, queries and users.

chosen = {
    "acqb": policies.Acqb(alpha_scale=0.5),
    "oldest": policies.Acqb(alpha_scale=0.5, schedule="oldest"),
}
source = sources.Synthetic()
data = cqbjax.sweep(chosen, source, arrival_rates=[0.7], seeds=50, horizon=500)
data = data.sel(arrival_rate=0.7)

# %%
# Each policy's mean has an interval over seeds.
# So has the difference, which is taken seed by seed before it is averaged.

length = summaries.mean_ci(data.queue_length)
lines = {policy: length.sel(policy=policy) for policy in chosen}
more = summaries.paired_difference(data, "queue_length", "oldest", "acqb")
lines["oldest - acqb"] = more
for name, one in lines.items():
    mean, low, high = (float(one[part][-1]) for part in ("mean", "low", "high"))
    print(f"{name:14} {mean:5.1f} queries at the end [{low:.1f}, {high:.1f}]")

# %%
# Left are the two means, right is the difference, each with its 95% interval.

figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
for panel, (name, one) in zip((left, left, right), lines.items(), strict=True):
    panel.plot(one["round"], one["mean"], label=name)
    panel.fill_between(one["round"], one["low"], one["high"], alpha=0.2)
    panel.set(xlabel="Round", xlim=(0, 500))
    panel.legend(loc="upper left")
left.set(ylabel="Queries waiting")
right.set(ylabel="Difference, seed by seed")
right.axhline(0, color="grey", linewidth=0.8)
plt.show()

# %%
# Serving the oldest makes the queue longer: the interval of the difference leaves out zero from
# round 60 on, though the two bands on the left overlap to the end.
