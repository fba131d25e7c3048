"""Look into a dataset: `info` describes it, `peek` shows one document and its origin."""
