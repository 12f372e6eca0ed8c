"""Checkpoints, exports and local slices of FSDP2-sharded models."""
