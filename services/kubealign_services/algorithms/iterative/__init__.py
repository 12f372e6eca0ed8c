"""Iterative algorithms, which learn in rounds from responses sampled at the start of each round."""
