"""Token sampling, and the search for stop tokens and stop strings."""
