"""Real prompts, LLMs and prices
=============================

Which LLM should answer a real prompt, and what does it cost? ParetoBandit's table is part of the
package: 3,609 prompts and three LLMs, with the score and the cost of each answer. `rho` is the
weight of the cost; with `rho=0` users consider only the score. You learn how to make a source from
a dataset, and how to record dollars, scores and traffic.
"""

import matplotlib.pyplot as plt

import cqbjax
from cqbjax import backend, datasets, policies

backend.configure()  # use every core; store compiled programs on disk

# %%
# One table gives two sources with the same prompts: in one of them users consider prices, in the
# other they do not. Print the mean success probability of each LLM.

queries = {}
for rho in (0, 5):
    one = datasets.dataset_source("paretobandit", "data", pool_size=200, rho=rho)
    queries[rho], llms = one.queries, one.table.servers
    chances = zip(llms, one.probabilities.mean(axis=0), strict=True)
    print(f"rho={rho}:", ", ".join(f"{llm} {chance:.2f}" for llm, chance in chances))

# %%
# Each seed draws 200 of the prompts for its run. Policies see their embeddings, d = 384.

chosen = {
    "random": policies.RandomRouting(),
    "acqb": policies.Acqb(alpha_scale=0.3, c1=0.25),
}
means = {}
for rho, source in queries.items():
    data = cqbjax.sweep(
        chosen,
        source,
        arrival_rate=[0.7],
        num_seeds=10,
        horizon=500,
        record=["dollars", "score", "traffic"],
    )
    means[rho] = data.sel(arrival_rate=0.7).isel(round=-1).mean("seed")

# %%
# Plot the fraction of the answers given by each LLM, and print the cost of a thousand satisfied
# queries.

figure, panels = plt.subplots(1, 2, figsize=(8, 3.4), sharey=True, layout="constrained")
for panel, (rho, one) in zip(panels, means.items(), strict=True):
    names = [str(policy) for policy in one.policy.values]
    bottom, shares = 0.0, one.traffic.transpose("llm", "policy").values
    for llm, share in zip(one.llm.values, shares, strict=True):
        panel.bar(names, share, bottom=bottom, width=0.6, label=llm)
        bottom = bottom + share
    for place, policy in enumerate(names):
        own = one.sel(policy=policy)
        dollars = f"${1000 * float(own.dollars):.2f}"
        panel.text(place, 1.02, dollars, ha="center")
        print(f"rho={rho} {policy:8} {float(own.queue_length):5.1f} wait, score", end=" ")
        print(f"{float(own.score):.3f}, {dollars} a thousand queries")
    panel.set(title=f"rho = {rho}", ylim=(0, 1.12))
panels[0].set(ylabel="Share of the answers")
figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
plt.show()

# %%
# If users consider prices, ACQB learns to avoid the most expensive LLM, and pays a sixth of what it
# pays otherwise.
