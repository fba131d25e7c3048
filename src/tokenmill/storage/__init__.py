"""Durable files: atomic writes, locks, claimed folders, and reading files from strangers."""
