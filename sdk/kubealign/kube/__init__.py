"""Kubernetes API client: connections, credentials, errors, watches, and resource paths."""
