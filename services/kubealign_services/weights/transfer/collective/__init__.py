"""Weight transfer by collectives of a process group (NCCL, gloo)."""
