"""What a job needs, on paper: memory by process and part, bytes on the wires, and whether it fits. Pure
arithmetic: neither torch nor transformers is imported."""
