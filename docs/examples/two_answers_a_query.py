"""Two answers per query
=====================

What if two LLMs answer at once, and the user chooses one of the answers, or neither? More users are
satisfied at their first attempt, but each attempt costs two answers. You learn how to set K, the
size of the assortment, and how to compare queue lengths with costs.
"""

import matplotlib.pyplot as plt

import cqbjax
from cqbjax import backend, datasets, policies

backend.configure()  # use every core; store compiled programs on disk

# %%
# Compare two policies on ParetoBandit's prompts: random routing, and Thompson sampling, which
# learns how often each LLM satisfies and ignores the prompt.

source = datasets.dataset_source("paretobandit", "data", pool_size=200)
chosen = {
    "random": policies.RandomRouting(),
    "thompson": policies.LlmRanking(index="thompson"),
}
rates = [0.4, 0.5, 0.6, 0.7]
means = {}
for size in (1, 2):
    data = cqbjax.sweep(
        chosen,
        source.queries,
        arrival_rate=rates,
        num_seeds=20,
        horizon=500,
        K=size,
        record=["dollars"],
    )
    means[size] = data.isel(round=-1).mean("seed")

# %%
# Plot queue length and cost at the end, for each arrival rate.

figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
for size, one in means.items():
    for color, policy in zip(("C0", "C1"), chosen, strict=True):
        own = one.sel(policy=policy)
        look = {"color": color, "linestyle": "-" if size == 1 else "--", "marker": "o"}
        left.plot(rates, own.queue_length, label=f"{policy}, K = {size}", **look)
        right.plot(rates, 1000 * own.dollars, **look)
        print(f"K={size} {policy:8} at rate 0.7:", end=" ")
        end = own.sel(arrival_rate=0.7)
        print(f"{float(end.queue_length):4.1f} wait, ${1000 * float(end.dollars):.2f}")
left.set(xlabel="Arrival rate", ylabel="Queries waiting", yscale="log", xticks=rates)
right.set(xlabel="Arrival rate", ylabel="USD a thousand queries", xticks=rates)
right.set_ylim(0, None)
figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=4)
plt.show()

# %%
# Random routing with two answers has a shorter queue than Thompson sampling with one answer, and
# costs sixteen times as much. It is cheaper to learn which LLM to ask than to ask two LLMs.
