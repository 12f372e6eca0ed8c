"""vLLM behind the engine contract.

Written for vLLM 0.15 and later (its V1 engine); unverified, because it needs a GPU.
"""
