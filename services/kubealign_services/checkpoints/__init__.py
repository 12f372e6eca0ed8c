"""Durable checkpoints of a job: store, manifest, step history and fence numbers."""
