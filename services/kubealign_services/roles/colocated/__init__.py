"""Trainer and rollout worker in one process, which take turns on one accelerator."""
