"""Training of a model behind one contract, with a plain PyTorch and a Megatron backend."""
