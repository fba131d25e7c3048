"""Tokens on disk: the manifest, reading a dataset, checking it."""
