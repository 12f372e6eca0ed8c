"""Scheduling: waiting requests, admission, and the running batch."""
