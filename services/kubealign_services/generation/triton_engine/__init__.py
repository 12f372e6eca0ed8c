"""Our own engine as a model of NVIDIA's Triton Inference Server, and the client that a worker uses it with.

`served.py` and what it imports run in the server's environment, which has neither gRPC's Python code nor our
wire contract: they know messages.py, engine_loop.py, weights_file.py and the engine itself.
"""
