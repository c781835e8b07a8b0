"""The simulator: types, random numbers, the choice model, the queue, one round, JAX's set-up."""
