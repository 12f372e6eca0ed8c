"""Download and loading of job results."""
