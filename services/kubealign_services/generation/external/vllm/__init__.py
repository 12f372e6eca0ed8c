"""vLLM behind the engine contract.

Written for vLLM 0.15 and later (its V1 engine); 0.26 ran on a GPU (docs/support.md).
"""
