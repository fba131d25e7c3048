"""Where the loss of a run jumped, and the documents that did it."""
