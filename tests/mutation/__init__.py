"""Faults planted one at a time, and the tests that should see them (`tests/mutate.py`)."""
