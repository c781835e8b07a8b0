"""How long users wait
===================

The queue length is what the service sees; users experience the time in the system. Two schedules
with queues of similar length can treat users very differently. You learn how to record times, and
how to get a row for every query.
"""

import matplotlib.pyplot as plt
import numpy as np
import polars as pl

import cqbjax
from cqbjax import backend, policies, sources
from cqbjax.results import tabulate_queries

backend.configure()  # use every core; store compiled programs on disk

# %%
# `record` names additional metrics, and `queries=True` records one row per query.

tuned = {"alpha_scale": 0.2, "c1": 0.25}
chosen = {
    "acqb": policies.Acqb(**tuned),
    "oldest": policies.Acqb(**tuned, schedule="oldest"),
}
data = cqbjax.sweep(
    chosen,
    sources.Synthetic(),
    arrival_rate=[0.7],
    num_seeds=50,
    horizon=500,
    record=["time_in_system", "largest_wait"],
    queries=True,
)

# %%
# Print the recorded metrics as means over seeds.

means = data.sel(arrival_rate=0.7).isel(round=-1).mean("seed")
print("        queue  median     99%  largest (rounds)")
for policy in chosen:
    one = means.sel(policy=policy)
    numbers = (one.queue_length, one.time_median, one.time_99, one.largest_wait)
    print(f"{policy:6}", *(f"{float(number):7.1f}" for number in numbers))

# %%
# For each time in the system, plot the fraction of the satisfied queries that took longer.

rows = tabulate_queries([data]).filter(pl.col("outcome") == "satisfied")
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
# hundred rounds. With the oldest query first, ten rounds are typical and fifty are the maximum. The
# queue lengths are about the same.
