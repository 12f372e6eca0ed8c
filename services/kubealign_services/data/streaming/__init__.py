"""Streamed rows: read, shuffled in a buffer and tokenised while the job trains."""
