"""The torch engine as a model of NVIDIA's Triton Inference Server, and the client through which a worker uses
it.

`python_backend_model.py` and the modules that it imports run in the server's environment, which has
neither gRPC's Python code nor the job's wire contract: they import messages.py, engine_loop.py,
weights_file.py and the engine itself.
"""
