"""Find where the loss of a run jumped, and the documents behind it."""
