"""Optimizer of a stage with its state sharded over the data-parallel ranks (ZeRO-1)."""
