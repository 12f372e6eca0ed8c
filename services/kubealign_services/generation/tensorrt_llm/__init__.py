"""TensorRT-LLM through its LLM interface behind our contract. Written for TensorRT-LLM 1.2 and 1.3 (the
PyTorch backend, its Ray orchestrator); unverified: it needs a GPU and NVIDIA's package index."""
