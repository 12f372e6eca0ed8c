"""Scoring of samples: reward models, reward functions and their combination."""
