"""Metrics, progress and samples of each step, and where they are reported."""
