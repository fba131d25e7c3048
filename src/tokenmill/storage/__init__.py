"""Durable files: atomic writes, locks, claimed folders, and reading untrusted files."""
