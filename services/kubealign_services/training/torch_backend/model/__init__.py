"""Loading and preparation of a model: packed forward passes, FSDP2, LoRA, fused layers."""
