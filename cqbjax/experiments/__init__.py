"""Experiments: which points they have, how they run, what they measure and store."""
