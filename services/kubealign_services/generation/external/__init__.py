"""External engines behind the engine contract: the code that vLLM and TensorRT-LLM share."""
