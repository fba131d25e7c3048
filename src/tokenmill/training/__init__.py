"""A reference trainer: a small GPT in PyTorch and in JAX, on tokenmill's batches, resumable to the bit."""
