"""Which documents differ between two datasets."""
