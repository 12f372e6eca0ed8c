"""Curves of the metrics of runs, drawn into a file."""
