"""The plain PyTorch backend: FSDP2, packing, log-probabilities, checkpoints."""
