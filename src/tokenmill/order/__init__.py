"""The order of training rows: pure functions from a row's number to the place of its tokens."""
