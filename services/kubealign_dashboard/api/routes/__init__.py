"""Routes below /api/v1, one module per subject."""
