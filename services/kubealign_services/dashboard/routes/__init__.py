"""What can be asked under /api/v1, one file a subject."""
