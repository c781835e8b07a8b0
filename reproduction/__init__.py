"""The reproduction of the paper: its numbers and claims, its theorems, the page of the report."""
