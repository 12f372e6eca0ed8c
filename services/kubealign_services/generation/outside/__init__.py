"""Engines of others behind our contract: what vLLM and TensorRT-LLM have in common."""
