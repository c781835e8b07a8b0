"""Where results are kept: pieces named by their keys."""
