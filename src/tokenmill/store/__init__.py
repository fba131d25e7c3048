"""Tokens on disk: the manifest, shards and document tables, and reading rows from them."""
