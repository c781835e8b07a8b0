"""Kinds of study of the theorems and their proofs."""
