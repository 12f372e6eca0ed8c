"""Tensor parallelism: one engine over several processes, each with a slice of every layer, which all execute
the same passes.
"""
