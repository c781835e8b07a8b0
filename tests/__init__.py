"""Tests, and what they and the benchmarks compare the package with (`tests.reference`)."""
