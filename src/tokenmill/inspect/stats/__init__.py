"""Statistics of a dataset: sources, lengths, tokens, scripts."""
