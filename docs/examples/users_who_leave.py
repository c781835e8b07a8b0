"""Users who give up, or come back later
=====================================

In the paper's scenario a user who is not satisfied keeps waiting. Other users give up, or are away
for a while. You learn how to define such a scenario, and why its queue length alone says little.
"""

import matplotlib.pyplot as plt

import cqbjax
from cqbjax import backend, dynamics, policies, sources

backend.configure()  # use every core; store compiled programs on disk

# %%
# Each type of user dynamics is a class, and several can be combined. Every scenario here uses both
# types, with numbers that switch one or both off. The three scenarios therefore differ only in
# numbers, and share a compiled program.

never = float("inf")
kinds = {
    "wait on": [dynamics.Impatience(attempts=never), dynamics.Orbit(return_rate=1.0)],
    "give up": [dynamics.Impatience(attempts=2), dynamics.Orbit(return_rate=1.0)],
    "come later": [dynamics.Impatience(attempts=never), dynamics.Orbit(return_rate=0.02)],
}
chosen = {"acqb": policies.Acqb(alpha_scale=0.2, c1=0.25)}
results = {}
for name, users in kinds.items():
    data = cqbjax.sweep(
        chosen,
        sources.Synthetic(),
        arrival_rate=[0.7],
        num_seeds=50,
        horizon=500,
        users=users,
        record=["gave_up", "away"],
    )
    results[name] = data.sel(policy="acqb", arrival_rate=0.7)

# %%
# `gave_up` is the fraction of users who gave up among all who left. Their number follows from this
# fraction and the departures.

left_out = {"waiting": [], "away": [], "gave up": []}
for name, one in results.items():
    end = one.isel(round=-1)
    lost = end.departures * end.gave_up / (1 - end.gave_up)
    for part, number in zip(left_out, (end.queue_length, end.away, lost), strict=True):
        left_out[part].append(float(number.mean()))
    counts = ", ".join(f"{numbers[-1]:.1f} {part}" for part, numbers in left_out.items())
    print(f"{name:10} {float(end.departures.mean()):.0f} satisfied, {counts}")

# %%
# The left panel shows what the service sees. The right panel shows all users who have arrived and
# were not satisfied.

figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
for name, one in results.items():
    left.plot(one["round"], one.queue_length.mean("seed"), label=name)
left.set(xlabel="Round", ylabel="Queries waiting", xlim=(0, 500), ylim=(0, 13))
left.legend(loc="upper left", ncols=3, fontsize="small")
bottom = [0.0] * len(results)
for color, (part, numbers) in zip(("C7", "C8", "C3"), left_out.items(), strict=True):
    right.bar(list(results), numbers, bottom=bottom, width=0.6, color=color, label=part)
    bottom = [below + number for below, number in zip(bottom, numbers, strict=True)]
right.set(ylabel="Users not satisfied at the end")
right.legend(loc="upper left")
plt.show()

# %%
# The queue is shortest in the scenario in which users give up, and this scenario also satisfies the
# fewest users.
