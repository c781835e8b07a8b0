"""The paper's theorems and the objects of their proofs, measured (docs/theory.md)."""
