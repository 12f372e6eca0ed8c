"""Benchmarks and sizing: how many rollout workers keep a trainer busy, computed from measurements.

Imports no torch.
"""
