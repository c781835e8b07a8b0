"""Compare two policies
====================

Does it matter which query is served first? ACQB serves the query that an LLM is most likely to
satisfy, according to an optimistic estimate. The other policy is ACQB too, but serves the oldest
query. You learn how to run both on the same draws, and how to compute an interval for their
difference.
"""

import matplotlib.pyplot as plt

import cqbjax
from cqbjax import backend, policies, sources, summaries

backend.configure()  # use every core; store compiled programs on disk

# %%
# A policy is an object, and its settings are its fields. The two policies differ only in
# `schedule`; `alpha_scale` multiplies the confidence radius. With each of 50 seeds, both meet the
# same arrivals, queries and users.

chosen = {
    "acqb": policies.Acqb(alpha_scale=0.5),
    "oldest": policies.Acqb(alpha_scale=0.5, schedule="oldest"),
}
source = sources.Synthetic()
data = cqbjax.sweep(chosen, source, arrival_rate=[0.7], num_seeds=50, horizon=500)
data = data.sel(arrival_rate=0.7)

# %%
# Each policy's mean has an interval over seeds. The difference is taken seed by seed before it is
# averaged, and has an interval too.

length = summaries.mean_ci(data.queue_length)
lines = {policy: length.sel(policy=policy) for policy in chosen}
more = summaries.paired_difference(data, "queue_length", "oldest", "acqb")
lines["oldest - acqb"] = more
for name, one in lines.items():
    mean, low, high = (float(one[part][-1]) for part in ("mean", "low", "high"))
    print(f"{name:14} {mean:5.1f} queries at the end [{low:.1f}, {high:.1f}]")

# %%
# The left panel shows the two means, the right panel the difference, each with its 95% interval.

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
# Serving the oldest query makes the queue longer. The interval of the difference excludes zero from
# round 60 on, although the intervals of the two means overlap to the end.
