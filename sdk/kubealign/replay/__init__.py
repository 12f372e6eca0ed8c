"""Replay: training again on the recorded batches of a run."""
