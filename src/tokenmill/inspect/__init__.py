"""Look into a dataset: `info` describes the dataset, `peek` shows one document and its origin."""
