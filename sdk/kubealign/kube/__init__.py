"""Kubernetes layer of operator, dashboard and client: API client, errors, reflector, watches, resources."""
