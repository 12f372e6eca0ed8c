"""The operator's in-memory state: caches, records and the work queue."""
