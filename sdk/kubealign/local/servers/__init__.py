"""Servers of a run: NATS, Redis and the dashboard."""
