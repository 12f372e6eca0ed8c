"""Metrics of running jobs, re-exported from the platform's Redis for a cluster's Prometheus."""
