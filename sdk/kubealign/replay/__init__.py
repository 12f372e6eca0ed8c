"""Training again on the batches that a run has recorded."""
