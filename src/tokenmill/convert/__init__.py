"""Convert tokens on disk from one format to another: export, import, reshard."""
