"""Make training batches from tokens on disk, in NumPy. Each framework has its own module."""
