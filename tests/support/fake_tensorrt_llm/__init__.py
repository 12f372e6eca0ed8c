"""A stand-in for TensorRT-LLM, which cannot be installed without NVIDIA's package index.

`tensorrt_llm` has the part of its documented interface that kubealign uses, over a model of transformers, and
refuses arguments that the interface has not. It shows that the adapter's logic runs, and nothing about
TensorRT-LLM itself.
"""
