"""The torch engine: any Hugging Face causal LM on PyTorch, with continuous batching over a KV cache."""

from kubealign_services.generation.torch_engine.attention.attention_plan import UnsupportedEngineModel
from kubealign_services.generation.torch_engine.engine import NonFiniteLogits, TorchRolloutEngine

__all__ = ["NonFiniteLogits", "TorchRolloutEngine", "UnsupportedEngineModel"]
