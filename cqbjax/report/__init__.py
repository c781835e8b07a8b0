"""Stored results, and what is shown of them."""
