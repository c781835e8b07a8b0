"""How long users wait
===================

A queue's length is what the service sees, and a user feels how long it took.
Two schedules whose queues are about as long can treat users very differently.
You learn how to record times, and how to get a row for every query.
"""

import matplotlib.pyplot as plt
import numpy as np
import polars as pl

import cqbjax
from cqbjax import backend, policies, sources
from cqbjax.results.rows import queries

backend.configure()  # every core, and compiled programs kept on disk

# %%
# `record` asks for numbers by their names, and `queries=True` for a row a query.

tuned = {"alpha_scale": 0.2, "c1": 0.25}
chosen = {
    "acqb": policies.Acqb(**tuned),
    "oldest": policies.Acqb(**tuned, schedule="oldest"),
}
data = cqbjax.sweep(
    chosen,
    sources.Synthetic(),
    arrival_rates=[0.7],
    seeds=50,
    horizon=500,
    record=["time_in_system", "largest_wait"],
    queries=True,
)

# %%
# The recorders' numbers, as means over seeds.

means = data.sel(arrival_rate=0.7).isel(round=-1).mean("seed")
print("        queue  median     99%  largest (rounds)")
for policy in chosen:
    one = means.sel(policy=policy)
    numbers = (one.queue_length, one.time_median, one.time_99, one.largest_wait)
    print(f"{policy:6}", *(f"{float(number):7.1f}" for number in numbers))

# %%
# The rows of all satisfied queries: the share whose time in the system was longer.

rows = queries([data]).filter(pl.col("outcome") == "satisfied")
figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
for policy in chosen:
    own = rows.filter(policy=policy)
    times = np.sort((own["departure"] - own["arrival"]).to_numpy())
    longer = 1 - np.arange(1, len(times) + 1) / len(times)
    axes.step(times, longer, where="post", label=policy)
axes.set(xscale="log", yscale="log", ylim=(1e-4, 1))
axes.set(xlabel="Rounds in the system", ylabel="Share that took longer")
axes.legend()
plt.show()

# %%
# ACQB satisfies half of its users within a round, and lets one in fifty wait for more than a
# hundred; with the oldest first ten rounds are usual and fifty the most, at about the same length.
