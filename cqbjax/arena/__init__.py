"""The page: every figure, table and claim of the report in one HTML file."""
