"""Commands that access the jobs of a backend."""
