"""One run from inside
===================

What does ACQB do from round to round, and how fast does it learn?
`simulate.trace` plays one run and keeps every decision, with what the policy knew after it.
You learn how to set that beside what no policy sees: the arrivals and the true parameters.
"""

import matplotlib.pyplot as plt
import numpy as np

from cqbjax import backend, policies, sources
from cqbjax.core import rng, simulate

backend.configure()  # every core, and compiled programs kept on disk

# %%
# All draws of a run follow from its key, and the key from the seed.
# `draw_instance` draws what is fixed before the first round, the same that `trace` meets.

source = sources.Synthetic()
acqb = policies.Acqb(alpha_scale=0.2, c1=0.25)
problem = source.problem(assortment_size=1, horizon=500)
key = rng.run_key(0)
run = simulate.trace(key, acqb, source, 0.7, problem, capacity=64)
instance = simulate.draw_instance(key, source, 0.7, problem)

# %%
# Who waits has come and has not left.
# The choice is a position in the assortment, 0 with one LLM; 1 says that the user comes back.

departed = run.valid & (run.choice == 0)
waiting = np.cumsum(instance.arrives) - np.cumsum(departed)
shown = np.bincount(run.servers[run.valid, 0], minlength=problem.num_servers)
print(f"{instance.arrives.sum()} queries came, {departed.sum()} users were satisfied")
print(f"{run.explored.sum()} rounds explored; attempts of each LLM: {shown}")

# %%
# The state after each round holds an estimate for each LLM: [T, N, d].

theta = acqb.theta(run.state, instance.world.contexts, problem)
error = np.linalg.norm(theta - source.theta(key), axis=-1)

rounds = np.arange(1, problem.horizon + 1)
figure, (above, below) = plt.subplots(2, 1, sharex=True, layout="constrained")
figure.set_size_inches(7, 5)
above.step(rounds, waiting, where="post")
explored = np.flatnonzero(run.explored)
above.plot(rounds[explored], waiting[explored], "kx", label="explored")
above.set(ylabel="Queries waiting", xlim=(0, problem.horizon), ylim=(0, None))
above.legend(loc="upper left")
for llm, times in enumerate(shown):
    below.plot(rounds, error[:, llm], label=f"LLM {llm}, {times} attempts")
below.set(xlabel="Round", ylabel="Error of the estimate", ylim=(0, None))
below.legend(loc="lower left", fontsize="small", ncols=2)
plt.show()

# %%
# The more attempts an LLM had, the smaller its error is at the end: what is not shown is not
# learnt.
