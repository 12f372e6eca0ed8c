"""Scores of frozen models for a batch: reference log-probabilities and teacher candidates, with a cache."""
