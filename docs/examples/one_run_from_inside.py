"""One run in detail
=================

What does ACQB do from round to round, and how fast does it learn? `simulate.trace` simulates one
run and returns every decision, with the state of the policy after it. You learn how to compare
these with the arrivals, and with the true parameters, which a policy does not see.
"""

import matplotlib.pyplot as plt
import numpy as np

from cqbjax import backend, policies, rng, simulate, sources

backend.configure()  # use every core; store compiled programs on disk

# %%
# All draws of a run follow from its key, and the key follows from the seed. `draw_instance` returns
# everything that is fixed before the first round, as `trace` uses it.

source = sources.Synthetic()
acqb = policies.Acqb(alpha_scale=0.2, c1=0.25)
problem = source.problem(K=1, horizon=500)
key = rng.run_key(0)
run = simulate.trace(key, acqb, source, 0.7, problem, capacity=64)
instance = simulate.draw_instance(key, source, 0.7, problem)

# %%
# The queries that wait are those that have arrived and not departed. The choice is a position in
# the assortment: with one LLM, 0 means accepted, and 1 means that the user comes back.

departed = run.valid & (run.choice == 0)
waiting = np.cumsum(instance.arrivals) - np.cumsum(departed)
shown = np.bincount(run.servers[run.valid, 0], minlength=problem.num_servers)
print(f"{instance.arrivals.sum()} queries came, {departed.sum()} users were satisfied")
print(f"{run.explored.sum()} rounds explored; attempts of each LLM: {shown}")

# %%
# The state after each round contains an estimate for each LLM: [T, N, d].

theta = acqb.theta(run.state, instance.workload.contexts, problem)
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
# The error at the end is smaller for LLMs with more attempts, because a policy learns only about
# the LLMs that it shows.
