"""Copies of a run's checkpoints and result in object storage: layout, upload and restoration."""
