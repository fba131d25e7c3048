"""The order of training rows: from a row's number to its tokens, by computation alone."""
