"""Compiled kernels of the engine's forward pass on a GPU."""
