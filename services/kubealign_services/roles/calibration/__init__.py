"""Calibration: measures the parts of a job's step on this machine, in one process."""
