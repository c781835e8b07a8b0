"""Users who give up, or come back later
=====================================

In the paper's world a user who is not satisfied waits on.
Others give up, or are away for a while.
You learn how to put such a world together, and why its queue length alone says little.
"""

import matplotlib.pyplot as plt

import cqbjax
from cqbjax import backend, dynamics, policies, sources

backend.configure()  # every core, and compiled programs kept on disk

# %%
# Each kind of users is a class, and several go together.
# Here every world has both kinds, with numbers that switch one or both off.
# So the three differ in numbers alone, and share a compiled program.

never = float("inf")
kinds = {
    "wait on": [dynamics.Impatient(attempts=never), dynamics.Orbit(return_rate=1.0)],
    "give up": [dynamics.Impatient(attempts=2), dynamics.Orbit(return_rate=1.0)],
    "come later": [dynamics.Impatient(attempts=never), dynamics.Orbit(return_rate=0.02)],
}
chosen = {"acqb": policies.Acqb(alpha_scale=0.2, c1=0.25)}
results = {}
for name, users in kinds.items():
    data = cqbjax.sweep(
        chosen,
        sources.Synthetic(),
        arrival_rates=[0.7],
        seeds=50,
        horizon=500,
        users=users,
        record=["gave_up", "away"],
    )
    results[name] = data.sel(policy="acqb", arrival_rate=0.7)

# %%
# `gave_up` is a share of those who are gone; their number follows from the departures.

left_out = {"waiting": [], "away": [], "gave up": []}
for name, one in results.items():
    end = one.isel(round=-1)
    lost = end.departures * end.gave_up / (1 - end.gave_up)
    for part, number in zip(left_out, (end.queue_length, end.away, lost), strict=True):
        left_out[part].append(float(number.mean()))
    told = ", ".join(f"{numbers[-1]:.1f} {part}" for part, numbers in left_out.items())
    print(f"{name:10} {float(end.departures.mean()):.0f} satisfied, {told}")

# %%
# Left is what the service sees, right is everybody who has come and was not satisfied.

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
# The queue is shortest where users give up, and nowhere are fewer of them satisfied.
