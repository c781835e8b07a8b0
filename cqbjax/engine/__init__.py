"""Many runs at once: what is planned, compiled, run in chunks, kept and gathered."""
