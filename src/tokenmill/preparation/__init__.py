"""Turn text into tokens on disk: plan, grind, sift, pack. The function is `tokenmill.prepare`."""
