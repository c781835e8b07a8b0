"""The numbers and claims of the paper, and the study that answers each."""
