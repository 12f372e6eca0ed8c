"""Rollout generation: the engine contract, and its implementations by the torch engine, a Triton
server, vLLM and TensorRT-LLM.
"""
