"""Logs, Prometheus metrics, heartbeats, the read model and trackers."""
