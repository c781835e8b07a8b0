"""The paper again: its numbers and claims beside ours, its theorems, the page of the report."""
