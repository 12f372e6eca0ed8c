"""Sandboxes as an external service: runs programs for the workers of other machines, by HTTP.

The contract is docs/sandbox-service.openapi.yaml.
"""
