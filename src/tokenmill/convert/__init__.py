"""Tokens from one form on disk into another: export, import, reshard."""
