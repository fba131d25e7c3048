"""A reference trainer: a small GPT, in PyTorch and in JAX, that resumes bit for bit."""
