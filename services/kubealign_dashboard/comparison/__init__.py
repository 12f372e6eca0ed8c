"""Comparison of two validations, sample by sample. Pure."""
