"""Processes of a run: fork server, supervisor, termination, ports and CPU cores."""
