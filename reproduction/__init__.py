"""The paper again: its printed numbers and claims beside ours, and the page of the report."""
