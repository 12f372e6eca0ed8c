"""Environments of the package verifiers (Prime Intellect) as agents: they run their own rollouts with the
policy as the model. The package is imported when it is used.
"""
