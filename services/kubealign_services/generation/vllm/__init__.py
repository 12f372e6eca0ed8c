"""vLLM behind our contract. Written for vLLM 0.15 and later (its V1 engine); unverified: it needs a GPU."""
