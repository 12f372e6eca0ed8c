"""The torch engine: any Hugging Face causal LM on PyTorch, with continuous batching over a KV cache."""

from kubealign_services.generation.torch_engine.attention import UnsupportedModel
from kubealign_services.generation.torch_engine.engine import NonFiniteLogits, TorchEngine

__all__ = ["NonFiniteLogits", "TorchEngine", "UnsupportedModel"]
