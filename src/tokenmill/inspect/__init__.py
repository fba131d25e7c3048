"""Inspect datasets and training runs, without changing them: one module or package per command."""
