"""Run many simulations at once: plan batches, compile programs, run chunks, gather results."""
