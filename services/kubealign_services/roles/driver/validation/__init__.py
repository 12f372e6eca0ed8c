"""Validation between steps: held-out loss, and sampled responses with their scores."""
