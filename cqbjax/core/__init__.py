"""The model itself: types, randomness, the choice, the queue, one round, and how JAX is set up."""
