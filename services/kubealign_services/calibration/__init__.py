"""Measuring, in one process, what the parts of a job's step take on this machine."""
