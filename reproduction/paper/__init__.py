"""What the paper prints and claims, and which study answers each."""
