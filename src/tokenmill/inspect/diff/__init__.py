"""Find the documents that two datasets do not share."""
