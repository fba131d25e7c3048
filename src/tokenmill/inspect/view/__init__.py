"""A local web application that shows datasets and runs: `tokenmill view`."""
