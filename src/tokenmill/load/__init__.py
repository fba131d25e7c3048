"""Tokens on disk to training batches, in NumPy; frameworks are in the modules with their names."""
