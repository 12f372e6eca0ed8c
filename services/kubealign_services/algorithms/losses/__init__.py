"""Losses: surrogates, aggregation, KL penalty, importance weights and value loss."""
