"""Tensor, pipeline, context and data parallel process groups and their layout."""
