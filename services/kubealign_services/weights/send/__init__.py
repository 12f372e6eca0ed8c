"""Publication of a weight version by the trainer: snapshot, slices, server."""
