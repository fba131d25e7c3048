"""Durable files, on disk or in an object store: atomic writes, locks, checked reads, a cache."""
