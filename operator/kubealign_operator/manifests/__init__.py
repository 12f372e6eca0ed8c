"""Builds the Kubernetes objects of a job. Pure."""
