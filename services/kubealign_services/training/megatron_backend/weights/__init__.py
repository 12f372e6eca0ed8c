"""Mapping between megatron-core parameters and Hugging Face tensors: loading, export, checkpoints, slices."""
