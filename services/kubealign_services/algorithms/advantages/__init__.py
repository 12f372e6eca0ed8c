"""Advantage estimation: baselines, GAE and normalisation."""
