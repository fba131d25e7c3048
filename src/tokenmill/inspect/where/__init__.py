"""Find where a document is, why it is absent, and when a run reads it."""
