"""Thin command-line scripts."""
