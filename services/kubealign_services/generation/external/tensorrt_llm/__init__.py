"""TensorRT-LLM behind the engine contract, through its LLM interface.

Written for TensorRT-LLM 1.2 and 1.3 (the PyTorch backend, its Ray orchestrator); unverified, because it
needs a GPU and NVIDIA's package index.
"""
