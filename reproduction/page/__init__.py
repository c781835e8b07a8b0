"""The page of the report: every figure, table and claim in one HTML file."""
