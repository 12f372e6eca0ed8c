"""Workflows that produce responses of several turns: tools, environments, functions."""
